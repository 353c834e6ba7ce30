package verify_test

import (
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

// openOf opens an attempt of this cost under api, which counts cost, and rpm, which does not. Of each 10 a
// window are allowed.
func openOf(t *testing.T, db ledgertest.DB, cost int64) int64 {
	t.Helper()
	id := ledgertest.Open(t, db)
	ledgertest.Exec(t, db, `UPDATE callq.call_limits SET count_cost = true, window_size = '10 min', applied_at = now() - interval '1 hour', complete_since = now() - interval '1 hour'
		WHERE name = 'api'`)
	ledgertest.Exec(t, db, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, count_cost, anchor, slack, send_within, queues, applied_at,
			applied_by, complete_since, epoch)
			SELECT 'rpm', version, rate, window_size, bucket_width, per_key, false, anchor, slack, send_within, queues,
		applied_at, applied_by, complete_since, epoch FROM callq.call_limits WHERE name = 'api' ON CONFLICT DO NOTHING`)
	ledgertest.Exec(t, db, publishedSQL)
	ledgertest.Exec(t, db, `UPDATE callq.call_open SET cost = $2::bigint, limits = '{api,rpm}', keys = '{"",""}', costs = ARRAY[$2::bigint, 1] WHERE call_id = $1`, id, cost)
	ledgertest.Exec(t, db, `UPDATE call_queue SET cost = $2 WHERE id = $1`, id, cost)
	return id
}

// publishedSQL makes the limits' present form an hour old.
const publishedSQL = `
INSERT INTO callq.call_limit_versions AS c (limit_name, version, effective_from, rate, window_size, per_key, count_cost, anchor, slack, send_within, queues, applied_by)
SELECT name, 1, now() - interval '1 hour', rate, window_size, per_key, count_cost, anchor, slack, send_within, queues, 'test' FROM callq.call_limits
ON CONFLICT (limit_name, version) DO UPDATE SET rate = excluded.rate, window_size = excluded.window_size, count_cost = excluded.count_cost,
    anchor = excluded.anchor, slack = excluded.slack`

// settle closes a started attempt with a reported cost; nil: none.
func settle(t *testing.T, db ledgertest.DB, id int64, settled *int64, change func(*ledger.Closing)) {
	t.Helper()
	took := time.Millisecond
	c := ledger.Closing{
		CallID: id, Attempt: 1, Token: id, Outcome: callqueue.OutcomeDone, Status: callqueue.StatusDone,
		Arrival: &limit.Arrival{By: &took, Written: took, EndBy: &took}, Settled: settled, Requests: new(int16(1)),
	}
	if change != nil {
		change(&c)
	}
	ledgertest.Close(t, db, c)
}

// Limits that count cost charge the reported cost, and the ledger has it. Other limits count a call as before.
//
//callq:guarantee 1
func TestSettle(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct {
		name            string
		cost            int64
		settled         *int64
		change          func(*ledger.Closing)
		api, rpm, noted int64 // -1: none
	}{
		{"nothing", 5, nil, nil, 5, 1, -1},
		{"less", 5, new(int64(2)), nil, 2, 1, 2},
		{"0: no unit, though it was sent", 5, new(int64(0)), nil, 0, 1, 0},
		{"more", 5, new(int64(7)), nil, 7, 1, 7},
		{"more than 1", 1, new(int64(3)), nil, 3, 1, 3},
		{"by one that failed", 5, new(int64(2)), func(c *ledger.Closing) {
			c.Outcome, c.Status, c.Failed = callqueue.OutcomePermanent, callqueue.StatusFailed, true
		}, 2, 1, 2},
		{"by one that was not sent", 5, new(int64(2)), func(c *ledger.Closing) {
			c.Outcome, c.Status, c.Arrival, c.Requests = callqueue.OutcomeNotSent, callqueue.StatusNew, nil, nil
		}, -1, -1, -1},
	} {
		ledgertest.Trial(t, pool, c.name, func(t *testing.T, tx pgx.Tx) {
			id := openOf(t, tx, c.cost)
			ledgertest.Start(t, tx, ledgertest.Request(id, id))
			settle(t, tx, id, c.settled, c.change)
			for name, units := range map[string]int64{"api": c.api, "rpm": c.rpm} {
				ledgertest.Want(t, tx, `SELECT coalesce((SELECT cost FROM jsonb_to_recordset(charged) AS c ("limit" text, cost bigint) WHERE "limit" = $1), -1) = $2
					FROM call_attempts`, name, units)
				ledgertest.Want(t, tx, `SELECT coalesce(sum(used), 0) = greatest($2, 0) FROM callq.call_usage WHERE limit_name = $1`, name, units)
			}
			ledgertest.Want(t, tx, `SELECT coalesce(settled, -1) = $1 AND cost = $2 FROM call_attempts`, c.noted, c.cost)
			wantBroken(t, tx)
		})
	}
}

// Run counts the claimed cost until the end and the reported cost from then on, as claims do. A reported cost above the
// claimed cost breaks no rule, but is reported.
//
//callq:guarantee 6
func TestVerifySettled(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	first, second := openOf(t, pool, 6), openOf(t, pool, 4)
	ledgertest.Start(t, pool, ledgertest.Request(first, first))
	ledgertest.Start(t, pool, ledgertest.Request(second, second))
	settle(t, pool, first, new(int64(1)), nil)
	third := openOf(t, pool, 5) // the first took 1, the second may take 4
	ledgertest.Start(t, pool, ledgertest.Request(third, third))
	report := run(t, pool)
	if use := report.Limits[0]; len(report.Findings) > 0 || use.Most != 10 || use.Above != 0 {
		t.Errorf("%+v, and found %+v", use, report.Findings)
	}
	settle(t, pool, second, new(int64(9)), nil)
	report = run(t, pool)
	if use := report.Limits[0]; len(report.Findings) > 0 || use.Most != 10 || use.Above != 5 {
		t.Errorf("%+v, and found %+v", use, report.Findings)
	}
	fourth := openOf(t, pool, 2) // which no claim may open: the third may still take 5, and 10 are used
	ledgertest.Start(t, pool, ledgertest.Request(fourth, fourth))
	ledgertest.Exec(t, pool, `UPDATE callq.call_open SET started_at = started_at + interval '1 ms' WHERE call_id = $1`, fourth)
	report = run(t, pool)
	if use := report.Limits[0]; len(report.Findings) != 1 || report.Findings[0].CallID != fourth || use.Most != 12 {
		t.Errorf("%+v, and found %+v; want call %d over the rate", use, report.Findings, fourth)
	}
}

// A reported cost that was forged afterwards is found.
//
//callq:guarantee 6
func TestVerifyFindsForgedSettlements(t *testing.T) {
	t.Parallel()
	const cost, usage = "an attempt is charged what it cost", "the usage of a limit is what its attempts were charged"
	pool := pgtest.New(t)
	id := openOf(t, pool, 6)
	ledgertest.Start(t, pool, ledgertest.Request(id, id))
	settle(t, pool, id, new(int64(4)), nil)
	for _, c := range []struct {
		name, forgery string
		rules         []string
	}{
		{"none", `SELECT`, nil},
		{"settled lower afterwards", `UPDATE call_attempts SET settled = 1`, []string{cost}},
		{"charged otherwise", `UPDATE call_attempts SET charged = jsonb_set(charged, '{0,cost}', '9')`, []string{cost, usage}},
		{"settled lower, and charged so", `UPDATE call_attempts SET settled = 2, charged = jsonb_set(charged, '{0,cost}', '2')`, []string{usage}},
	} {
		ledgertest.Trial(t, pool, c.name, func(t *testing.T, tx pgx.Tx) {
			ledgertest.Exec(t, tx, c.forgery)
			wantBroken(t, tx, c.rules...)
		})
	}
}
