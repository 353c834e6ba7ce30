package policy

import (
	"testing"

	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
)

// The table takes the algorithms that there are, and no other.
func TestAlgorithmsAreStored(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ledgertest.Open(t, pool)
	const unknown = "thimble"
	for _, a := range append(limit.Algorithms(), unknown) {
		_, err := pool.Exec(t.Context(), `UPDATE callq.call_limits SET shape = jsonb_build_object('algorithm', $1::text)`, a)
		if (err != nil) != (a == unknown) {
			t.Errorf("%s: %v", a, err)
		}
	}
	if _, err := limit.Parse("1/s", unknown, 0, ""); err == nil {
		t.Errorf("a rate of algorithm %s was read", unknown)
	}
}
