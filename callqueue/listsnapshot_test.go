package callqueue_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/pgtest"
)

// A list is of one moment: a call that is made while it is looked for is not met with twice, in another's place.
func TestListIsOneSnapshot(t *testing.T) {
	t.Parallel()
	base := pgtest.New(t)
	exec := func(sql string) {
		if _, err := base.Exec(t.Context(), sql); err != nil {
			t.Error(err)
		}
	}
	const madeSQL = `INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
		SELECT id, 1, 1, now(), now(), 'done', 'default', 'http', '', '[]' FROM call_queue WHERE status = 'done' ON CONFLICT DO NOTHING`
	exec(`INSERT INTO call_queue (status) VALUES ('done'), ('new')`)
	exec(`INSERT INTO call_queue (status) SELECT 'failed' FROM generate_series(1, 20000)`) // no list of others ends with the newest
	exec(madeSQL)
	client, _ := another(t, base, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = onStatement(func(sql string) {
			if strings.Contains(sql, "outcome = 'done'") { // what waits has been looked for
				exec(`UPDATE call_queue SET status = 'done' WHERE id = 2`)
				exec(madeSQL)
			}
		})
	})
	f := callqueue.Filter{Statuses: []callqueue.Status{callqueue.StatusNew, callqueue.StatusDone}}
	list, err := client.List(t.Context(), f, 2)
	if err != nil || len(list) != 2 || list[0].Status != callqueue.StatusNew || list[1].ID != 1 {
		t.Errorf("%+v, %v; want one that waits and one that is done", list, err)
	}
	if again, err := client.List(t.Context(), f, 2); err != nil || len(again) != 2 || again[0].Status != callqueue.StatusDone {
		t.Errorf("then: %+v, %v; want two that are done", again, err)
	}
}
