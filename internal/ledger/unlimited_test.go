package ledger_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Whatever is said of attempts without limits, the shorter statement and closeSQL leave the same rows.
func TestCloseUnlimitedAgrees(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for range 60 {
		var closings []ledger.Closing
		ledgertest.Exec(t, pool, `TRUNCATE call_queue, call_open`)
		for range 1 + rand.IntN(6) {
			closings = append(closings, randomClosing(ledgertest.Open(t, pool)))
		}
		ledgertest.Exec(t, pool, `UPDATE call_open SET limits = '{}', keys = '{}', costs = '{}', task = (ARRAY['http', 'own'])[1 + random()::int],
			epoch = epoch || (ARRAY['', 'x'])[1 + (random() / 1.5)::int], send_within = (ARRAY[NULL, interval '300 ms'])[1 + random()::int]`)
		ledgertest.Exec(t, pool, `UPDATE call_open SET token = 7, started_at = clock_timestamp(),
			acked_at = (ARRAY[NULL, clock_timestamp()])[1 + random()::int] WHERE random() < 0.6`)
		ledgertest.Exec(t, pool, `UPDATE call_queue SET failed_count = (ARRAY[0, 3, 2147483647])[1 + (2 * random())::int],
			status = (ARRAY['dispatched', 'dispatched', 'cancelled', 'new'])[1 + (3 * random())::int]`)
		full := after(t, pool, closings)
		for i := range closings {
			closings[i].Unlimited = true
		}
		if short := after(t, pool, closings); short != full {
			t.Fatalf("%+v left\n%s\nwant\n%s", closings, short, full)
		}
	}
}

func randomClosing(id int64) ledger.Closing {
	some := func() bool { return rand.IntN(3) == 0 }
	c := ledger.Closing{
		CallID: id, Attempt: 1, Token: 7, Unstarted: some(), Failed: some(),
		Outcome: pick(callqueue.OutcomeDone, callqueue.OutcomeError, callqueue.OutcomeLost, callqueue.OutcomeNotSent),
		Status:  pick(callqueue.StatusDone, callqueue.StatusError, callqueue.StatusFailed, callqueue.StatusNew),
		Error:   pick("", "boom"), Result: pick(nil, []byte(`{"a": 1}`)),
		Requests: pick(nil, new(int16(1))), Settled: pick(nil, new(int64(2))), Delay: pick(nil, new(time.Minute)),
	}
	if !some() {
		offset := func() *time.Duration { return pick(nil, new(time.Duration(rand.IntN(1e9)))) }
		c.Arrival = &limit.Arrival{Written: 200 * time.Millisecond, Closed: time.Second, By: offset(), EndBy: offset(), Acked: offset()}
	}
	return c
}

func pick[T any](of ...T) T { return of[rand.IntN(len(of))] }

// after is what the closings leave, times beside the moment of the close. It undoes them.
func after(t *testing.T, pool *pgxpool.Pool, closings []ledger.Closing) (rows string) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := ledger.Close(t.Context(), tx, closings); err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), `
		SELECT concat_ws(E'\n',
			(SELECT jsonb_agg(to_jsonb(a) - 'finished_at' ORDER BY call_id) FROM call_attempts a),
			(SELECT jsonb_agg(to_jsonb(q) - 'run_at' - 'finished_at' - 'failed_at' || jsonb_build_object('later', q.run_at = a.finished_at + interval '1 minute',
				'ended', q.finished_at = a.finished_at, 'failed', q.failed_at = a.finished_at) ORDER BY id)
				FROM call_queue q LEFT JOIN call_attempts a ON a.call_id = q.id),
			(SELECT count(*) FROM call_usage), (SELECT jsonb_agg(call_id ORDER BY call_id) FROM call_open))`).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}
