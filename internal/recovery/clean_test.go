package recovery

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// What an API said is kept for a day.
func TestCleanRemotes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO callq.call_remotes (limit_name, key, answered_at) VALUES ('api', 'old', now() - interval '25 h'), ('api', 'new', now() - interval '23 h')`); err != nil {
		t.Fatal(err)
	}
	if _, err := pgtest.AsDaemon(t, pool).Exec(t.Context(), cleanRemotesSQL); err != nil {
		t.Fatal(err)
	}
	var kept string
	if err := pool.QueryRow(t.Context(), `SELECT string_agg(key, ',') FROM callq.call_remotes`).Scan(&kept); err != nil || kept != "new" {
		t.Errorf("kept %s, %v", kept, err)
	}
}
