package verify_test

import (
	"testing"

	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

// What a lost worker had started of a run may never have had its turn: it is no part of what came before another of the run. To
// others it counts, and what had its turn counts to all.
func TestVerifyRuns(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const over = "no window holds more than the rate"
	for _, c := range []struct {
		name, change string
		broken       []string
	}{
		{"all had their turns", `run = 1`, []string{over}},
		{"the last was lost", `run = 1, outcome = CASE call_id WHEN 3 THEN 'lost' ELSE 'done' END`, nil},
		{"one before it was lost", `run = 1, outcome = CASE call_id WHEN 2 THEN 'lost' ELSE 'done' END`, nil},
		{"one of another run was", `run = call_id, outcome = CASE call_id WHEN 2 THEN 'lost' ELSE 'done' END`, []string{over}},
		{"none was in a run", `outcome = CASE call_id WHEN 2 THEN 'lost' ELSE 'done' END`, []string{over}},
	} {
		ledgertest.Trial(t, pool, c.name, func(t *testing.T, tx pgx.Tx) {
			startedAt(t, tx, `{}`, "00:00:00", "00:00:11", "00:00:12")
			ledgertest.Exec(t, tx, `UPDATE call_attempts SET arrived_by = arrived_by + interval '600 ms',
				finished_at = finished_at + interval '600 ms',
				charged = jsonb_set(charged, '{0,until}', to_jsonb(arrived_by + interval '600 ms')), `+c.change)
			wantBroken(t, tx, c.broken...)
		})
	}
}
