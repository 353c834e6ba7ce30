package verify

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// openCase is an open attempt, or a limit that counts it. Times are ms on one line; negative ones are NULL.
type openCase struct {
	task, anchor                      string
	former                            bool // claimed before a failover
	started, sendWithin, acked, slack int
	overtaken                         int
	proof                             string
}

// callq.occupied_until, which claims and reports use, and verify's own formula agree on every open attempt. They differ
// after a failover only: claims then count an attempt until its end.
func TestOpenUntil(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	cases := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) openCase {
		return openCase{
			rapid.SampledFrom([]string{"http", "mine"}).Draw(t, "task"), rapid.SampledFrom([]string{"", "start", "finish"}).Draw(t, "anchor"),
			rapid.IntRange(0, 4).Draw(t, "former") == 0, rapid.IntRange(-10, 30).Draw(t, "started"), rapid.IntRange(-2, 9).Draw(t, "send within"),
			rapid.IntRange(-30, 60).Draw(t, "acknowledged"), rapid.IntRange(0, 9).Draw(t, "slack"),
			rapid.IntRange(-30, 60).Draw(t, "overtaken"), rapid.SampledFrom([]string{"later", "answer", "slack"}).Draw(t, "proof"),
		}
	}), 1, 8)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		var all pgx.Batch
		all.Queue(`TRUNCATE callq.call_open, callq.call_limits, callq.call_limit_versions`)
		for i, c := range cases.Draw(rt, "cases") {
			all.Queue(openCaseSQL, pgx.StrictNamedArgs{
				"i": i, "zero": zero, "task": c.task, "anchor": c.anchor, "former": c.former,
				"started": c.started, "send_within": c.sendWithin, "acked": c.acked, "slack": c.slack,
				"overtaken": c.overtaken, "proof": c.proof,
			})
		}
		if err := pool.SendBatch(ctx, &all).Close(); err != nil {
			rt.Fatal(err)
		}
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			v := newVerifier(tx, time.Time{})
			until := map[int64]*time.Time{}
			var id int64
			var at *time.Time
			rows, err := tx.Query(ctx, occupiedUntilSQL)
			if err != nil {
				return err
			}
			if _, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error { until[id] = at; return nil }); err != nil {
				return err
			}
			if err := v.readPolicy(ctx); err != nil {
				return err
			}
			return v.eachAttempt(ctx, func(a *attempt) {
				var want *time.Time
				if a.Started != nil && a.Queue != "former" {
					want = v.openUntil(a, fmt.Sprint("limit ", a.CallID))
				}
				if got := until[a.CallID]; (got == nil) != (want == nil) || got != nil && !got.Equal(*want) {
					rt.Errorf("%+v: claims count it until %v, verify until %v", a, got, want)
				}
			})
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// Postgres puts the function's body in the place of its call: a claim reads every open attempt through it.
func TestOccupiedUntilIsInlined(t *testing.T) {
	t.Parallel()
	rows, err := pgtest.New(t).Query(t.Context(), `EXPLAIN (VERBOSE) `+occupiedUntilSQL)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if text := strings.Join(plan, "\n"); err != nil || !strings.Contains(text, "'00:00:05'") || strings.Contains(text, "callq.occupied_until") {
		t.Errorf("%s\n%v", text, err)
	}
}

const openCaseSQL = `
WITH c AS (
    SELECT 'limit ' || @i::int AS name, nullif(@anchor, '') AS anchor, @slack::int * interval '1 ms' AS slack,
        @zero::timestamptz + nullif(greatest(@started::int, -1), -1) * interval '1 ms' AS started_at
), in_force AS (
    INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, anchor, slack, proof, send_within, queues, applied_at, applied_by, epoch)
    SELECT name, 1, 1, '1 s', '1 ms', anchor, slack, @proof, '0', '{}', now(), 'test', 'now' FROM c
), version AS (
    INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, anchor, slack, proof, applied_by)
    SELECT name, 1, @zero, 1, '1 s', anchor, slack, @proof, 'test' FROM c
)
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, send_within, acked_at, overtaken_at, epoch, pool,
    queue, task, key, limits, keys, costs)
SELECT @i, 1, 0, 1, 1, @zero, @zero, @zero, started_at, nullif(greatest(@send_within::int, -1), -1) * interval '1 ms',
    CASE WHEN started_at IS NOT NULL THEN @zero::timestamptz + nullif(greatest(@acked::int, -1), -1) * interval '1 ms' END,
    CASE WHEN started_at IS NOT NULL THEN @zero::timestamptz + nullif(greatest(@overtaken::int, -1), -1) * interval '1 ms' END,
    CASE WHEN @former THEN 'former' ELSE 'now' END, 'http', CASE WHEN @former THEN 'former' ELSE 'default' END, @task, '', ARRAY[name], '{""}', '{1}'
FROM c`

// occupiedUntilSQL is NULL for 'infinity'.
const occupiedUntilSQL = `
SELECT o.call_id, nullif(callq.occupied_until(o.task, o.epoch, o.started_at, o.send_within, o.acked_at, o.overtaken_at, l.anchor, l.epoch, l.slack, l.proof), 'infinity')
FROM callq.call_open o JOIN callq.call_limits l ON l.name = o.limits[1]`
