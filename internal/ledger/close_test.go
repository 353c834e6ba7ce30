package ledger_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A closer that knows the attempts and the limits leaves the same rows as one that reads them first.
func TestCloseAgrees(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ledgertest.Open(t, pool)
	ledgertest.Exec(t, pool, `
		INSERT INTO callq.call_limits SELECT (jsonb_populate_record(l, r)).*
		FROM callq.call_limits l, jsonb_array_elements('[{"name": "runs", "window_size": "0"}, {"name": "by key", "per_key": true, "bucket_width": "1 s"},
			{"name": "cost", "count_cost": true, "anchor": "finish", "per_key": true}, {"name": "former", "epoch": "x", "anchor": "start"}]') r`)
	ledgertest.Exec(t, pool, `UPDATE callq.call_limits SET known_at = clock_timestamp() + interval '10 s' WHERE name = 'by key'`)
	for range 100 {
		ledgertest.Exec(t, pool, `TRUNCATE call_queue, callq.call_open`)
		closings := randomAttempts(t, pool)
		known := slices.Clone(closings)
		for i := range known {
			known[i].Opened = opened(t, pool, known[i])
		}
		// What a worker does not know of.
		ledgertest.Exec(t, pool, `UPDATE callq.call_open SET acked_at = started_at + interval '70 ms' WHERE random() < 0.3`)
		ledgertest.Exec(t, pool, `UPDATE callq.call_open SET epoch = epoch || ' before a restore' WHERE random() < 0.1`)
		read := after(t, pool, new(ledger.Closer), closings)
		knows := new(ledger.Closer)
		if err := knows.Warm(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		ledgertest.Exec(t, pool, `UPDATE callq.call_limits SET slack = slack, per_key = NOT per_key WHERE name = 'cost' AND random() < 0.5`)
		read = cmp.Or(after(t, pool, new(ledger.Closer), closings), read)
		if left := after(t, pool, knows, known); left != read {
			t.Fatalf("left\n%s\nwant\n%s", left, read)
		}
	}
}

// However often limits change, no close is lost.
//
//callq:guarantee 5
func TestCloseWhileLimitsChange(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	closer := new(ledger.Closer)
	if err := closer.Warm(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	var closings []ledger.Closing
	for range 400 {
		id := ledgertest.Open(t, pool)
		ledgertest.Start(t, pool, ledgertest.Request(id, 7))
		c := ledger.Closing{CallID: id, Attempt: 1, Token: 7, Outcome: callqueue.OutcomeDone, Status: callqueue.StatusDone, Arrival: &limit.Arrival{}}
		c.Opened = opened(t, pool, c)
		closings = append(closings, c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var changes, closes sync.WaitGroup
	changes.Go(func() {
		for ctx.Err() == nil {
			_, _ = pool.Exec(ctx, `UPDATE callq.call_limits SET slack = slack`)
		}
	})
	for part := range slices.Chunk(closings, 100) {
		closes.Go(func() {
			for some := range slices.Chunk(part, 4) {
				for {
					closed, err := closer.Close(context.WithoutCancel(ctx), pool, some)
					if err == nil && len(closed) == len(some) {
						break
					}
					if err == nil {
						t.Errorf("%d of %d closed, and no error", len(closed), len(some))
						return
					}
				}
			}
		})
	}
	closes.Wait()
	cancel()
	changes.Wait()
	ledgertest.Want(t, pool, `SELECT count(*) = 0 FROM callq.call_open`)
	ledgertest.Want(t, pool, `SELECT sum(used) = 400 FROM callq.call_usage`)
}

// randomAttempts opens some, and says how they close.
func randomAttempts(t *testing.T, pool *pgxpool.Pool) (closings []ledger.Closing) {
	for range 1 + rand.IntN(6) {
		closings = append(closings, randomClosing(ledgertest.Open(t, pool)))
	}
	ledgertest.Exec(t, pool, `
		UPDATE callq.call_open SET (limits, keys, costs) = (
			SELECT coalesce(array_agg(name ORDER BY name), '{}'), coalesce(array_agg(key ORDER BY name), '{}'), coalesce(array_agg(cost ORDER BY name), '{}')
			FROM (SELECT name, (ARRAY['', 'k<1>'])[1 + random()::int] AS key, 1 + random()::int AS cost
				FROM unnest('{api,by key,cost,former,gone,runs}'::text[]) AS name WHERE call_id > 0 AND random() < 0.4) u),
			task = (ARRAY['http', 'own'])[1 + random()::int], cost = 1 + random()::int,
			send_within = (ARRAY[NULL, interval '1 hour'])[1 + random()::int]`)
	ledgertest.Exec(t, pool, `UPDATE callq.call_open SET token = 7, started_at = clock_timestamp() WHERE random() < 0.8`)
	ledgertest.Exec(t, pool, `UPDATE call_queue SET failed_count = (ARRAY[0, 3, 2147483647])[1 + (2 * random())::int],
		status = (ARRAY['dispatched', 'dispatched', 'cancelled', 'new'])[1 + (3 * random())::int]`)
	return closings
}

func randomClosing(id int64) ledger.Closing {
	some := func() bool { return rand.IntN(3) == 0 }
	c := ledger.Closing{
		CallID: id, Attempt: 1, Token: 7, Unstarted: some(), Failed: some(),
		Outcome: pick(callqueue.OutcomeDone, callqueue.OutcomeError, callqueue.OutcomeLost, callqueue.OutcomeNotSent),
		Status:  pick(callqueue.StatusDone, callqueue.StatusError, callqueue.StatusFailed, callqueue.StatusNew),
		Error:   pick("", "boom"), Result: pick(nil, []byte(`{"a": 1}`)),
		Requests: pick(nil, new(int16(1))), Settled: pick(nil, new(int64(2)), new(int64(0))), Delay: pick(nil, new(time.Minute)),
	}
	if !some() {
		offset := func() time.Duration { return time.Hour + time.Duration(rand.IntN(1e9)) } // later than the close
		maybe := func() *time.Duration { return pick(nil, new(offset())) }
		c.Arrival = &limit.Arrival{Written: offset(), Closed: offset(), By: maybe(), EndBy: maybe(), Acked: maybe()}
	}
	return c
}

func pick[T any](of ...T) T { return of[rand.IntN(len(of))] }

// opened is what a worker knows of the attempt.
func opened(t *testing.T, pool *pgxpool.Pool, c ledger.Closing) *ledger.Opened {
	t.Helper()
	o := new(ledger.Opened)
	if err := pool.QueryRow(t.Context(), `
		SELECT epoch, task, cost, limits, keys, costs, coalesce(started_at, claimed_at), CASE WHEN started_at IS NOT NULL THEN send_within END
		FROM callq.call_open WHERE call_id = $1`, c.CallID).
		Scan(&o.Epoch, &o.Task, &o.Cost, &o.Limits, &o.Keys, &o.Costs, &o.From, &o.SendWithin); err != nil {
		t.Fatal(err)
	}
	return o
}

// after is what the closings leave, times beside the moment of the close. It undoes them.
func after(t *testing.T, pool *pgxpool.Pool, closer *ledger.Closer, closings []ledger.Closing) (rows string) {
	t.Helper()
	ledgertest.Exec(t, pool, `CREATE TABLE calls AS SELECT * FROM call_queue`)
	ledgertest.Exec(t, pool, `CREATE TABLE open AS SELECT * FROM callq.call_open`)
	if _, err := closer.Close(t.Context(), pool, closings); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(t.Context(), leftSQL).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	ledgertest.Exec(t, pool, `TRUNCATE call_queue, callq.call_open, call_attempts, callq.call_usage, callq.call_inbox`)
	ledgertest.Exec(t, pool, `INSERT INTO call_queue OVERRIDING SYSTEM VALUE SELECT * FROM calls`)
	ledgertest.Exec(t, pool, `INSERT INTO callq.call_open SELECT * FROM open`)
	ledgertest.Exec(t, pool, `DROP TABLE calls, open`)
	return rows
}

// leftSQL is all that closes write. Moments of the close itself are 'now'.
const leftSQL = `
SELECT concat_ws(E'\n',
	(SELECT jsonb_agg(replace((to_jsonb(a) - 'finished_at')::text, to_json(a.finished_at)::text, '"now"') ORDER BY call_id) FROM call_attempts a),
	(SELECT jsonb_agg(to_jsonb(q) - 'run_at' - 'finished_at' - 'failed_at' || jsonb_build_object('later', q.run_at = a.finished_at + interval '1 minute',
		'ended', q.finished_at = a.finished_at, 'failed', q.failed_at = a.finished_at) ORDER BY id)
		FROM call_queue q LEFT JOIN call_attempts a ON a.call_id = q.id),
	(SELECT jsonb_agg(u ORDER BY u) FROM (SELECT jsonb_build_array(limit_name, key, bucket, sign(shard), sum(used)) AS u
		FROM callq.call_usage GROUP BY limit_name, key, bucket, sign(shard)) u),
	(SELECT jsonb_agg(call_id ORDER BY call_id) FROM callq.call_open),
	(SELECT jsonb_agg(DISTINCT jsonb_build_array(queue, key)) FROM callq.call_inbox WHERE calls = 0 AND NOT EXISTS (SELECT FROM callq.call_open)))`
