package dispatcher

import (
	"context"
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// Where VACUUM runs for too long, retention ends without the index, and well.
func TestIndexIsLeftToVacuum(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	vacuum, err := pool.Begin(t.Context())
	if err == nil {
		defer vacuum.Rollback(context.WithoutCancel(t.Context()))
		_, err = vacuum.Exec(t.Context(), `LOCK TABLE call_queue IN SHARE UPDATE EXCLUSIVE MODE`)
	}
	if err == nil {
		err = ranges{0: {}}.sumUpAnew(t.Context(), pool, 2*vacuumLook)
	}
	if err != nil {
		t.Error(err)
	}
}
