package ledger_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

// Concurrent batches that name the same attempts in opposite orders do not deadlock, and each attempt starts once and
// closes once.
func TestOppositeOrders(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, map[string]string{"deadlock_timeout": "10ms"}) // before a lock times out
	ids := make([]int64, 300)
	for i := range ids {
		ids[i] = ledgertest.Open(t, pool)
	}
	race := func(what string, batch func(token int64, ids []int64) (int, error)) {
		var done atomic.Int64
		var wg sync.WaitGroup
		gate := make(chan struct{})
		for worker := range int64(4) {
			mine := slices.Clone(ids)
			if worker%2 == 1 {
				slices.Reverse(mine)
			}
			wg.Go(func() {
				<-gate
				n, err := batch(worker+1, mine)
				for ledger.Busy(err) { // a busy machine: the others took more than 100 ms
					n, err = batch(worker+1, mine)
				}
				if err != nil {
					t.Error(err)
				}
				done.Add(int64(n))
			})
		}
		close(gate)
		wg.Wait()
		if n := done.Load(); n != int64(len(ids)) {
			t.Errorf("%s: %d of %d attempts", what, n, len(ids))
		}
	}
	race("started", func(token int64, ids []int64) (n int, err error) {
		var requests []ledger.StartRequest
		for _, id := range ids {
			requests = append(requests, ledgertest.Request(id, token))
		}
		answers, err := ledger.Start(context.Background(), pool, "w", requests)
		for _, a := range answers {
			if a.Refused == nil {
				n++
			}
		}
		return n, err
	})
	ledgertest.Exec(t, pool, `UPDATE callq.call_open SET token = NULL, worker = NULL, started_at = NULL, deadline = NULL`)
	race("closed", func(_ int64, ids []int64) (int, error) {
		var closings []ledger.Closing
		for _, id := range ids {
			closings = append(closings, ledger.Closing{
				CallID: id, Attempt: 1, Unstarted: true, Outcome: callqueue.OutcomeNotSent, Status: callqueue.StatusNew,
			})
		}
		closed, err := new(ledger.Closer).Close(context.Background(), pool, closings)
		return len(closed), err
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	id := ledgertest.Open(t, pool)
	startedAt := ledgertest.Start(t, pool, ledgertest.Request(id, 7))[7].StartedAt
	by := 40 * time.Millisecond
	ledgertest.Close(t, pool, ledger.Closing{
		CallID: id, Attempt: 1, Token: 7, Outcome: callqueue.OutcomeDone, Result: []byte(`{"status":200}`),
		Arrival: &limit.Arrival{By: &by, Written: time.Second, EndBy: &by, Closed: time.Second}, Status: callqueue.StatusDone,
	})
	ledgertest.Want(t, pool, `SELECT status = 'done' AND unique_key IS NULL AND finished_at IS NOT NULL AND failed_count = 0 FROM call_queue`)
	ledgertest.Want(t, pool, `SELECT count(*) = 0 FROM callq.call_open`)
	ledgertest.Want(t, pool, `SELECT outcome = 'done' AND arrived_by = $1::timestamptz + interval '40 ms' AND result->>'status' = '200'
		AND (charged->0->>'until')::timestamptz = arrived_by AND charged->0->>'limit' = 'api' FROM call_attempts`, startedAt)
	ledgertest.Want(t, pool, `SELECT sum(used) = 1 AND min(bucket) >= $1::timestamptz + interval '40 ms'
		AND min(bucket) <= $1::timestamptz + interval '90 ms' FROM callq.call_usage`, startedAt)
}

// The ledger may have attempts of a former call with the same id. They stay, and prevent no close.
//
//callq:guarantee 13
func TestCloseOfAnIDThatIsUsedTwice(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, ledger.Settings())
	daemon := pgtest.AsDaemon(t, pool)
	closing := func(id int64) ledger.Closing {
		ledgertest.Start(t, daemon, ledgertest.Request(id, id))
		return ledger.Closing{CallID: id, Attempt: 1, Token: id, Outcome: callqueue.OutcomeDone, Status: callqueue.StatusDone, Arrival: &limit.Arrival{}}
	}
	for life := range 3 {
		ledgertest.Exec(t, pool, `TRUNCATE call_queue RESTART IDENTITY`)
		var closings []ledger.Closing
		for range 3 {
			closings = append(closings, closing(ledgertest.Open(t, pool)))
		}
		if closed, _, err := ledger.CloseFree(t.Context(), daemon, closings); err != nil || len(closed) != len(closings) {
			t.Fatalf("CloseFree = %v, %v", closed, err)
		}
		ledgertest.Exec(t, pool, `INSERT INTO call_attempts SELECT call_id, 2, requests, code, took_ms, cost, settled, claimed_at, started_at, arrived_by, finished_at, outcome, queue,
			task, key, worker, error, charged, result FROM call_attempts WHERE call_id = 1 AND attempt = 1 AND $1`, life == 0)
	}
	ledgertest.Want(t, pool, `SELECT array_agg(call_id || '/' || attempt ORDER BY call_id, attempt) = '{1/-2,1/-1,1/0,1/1,2/-1,2/0,2/1,3/-1,3/0,3/1}' FROM call_attempts`)
}

// A close charges an attempt until the latest moment at which its request can have arrived, for either anchor.
//
//callq:guarantee 1
func TestCloseUntil(t *testing.T) {
	t.Parallel()
	ms := func(n int64) *time.Duration { d := time.Duration(n) * time.Millisecond; return &d }
	cases := []struct {
		name          string
		arrival       limit.Arrival
		start, finish int64 // ms after the start; slack is 100 ms, and send_within 300 ms
	}{
		{"answered soon: its answer", limit.Sending{Sent: ms(3), Answered: ms(23), Ended: *ms(25)}.Arrival(), 23, 23},
		{"answered late: its answer", limit.Sending{Sent: ms(3), Answered: ms(900), Ended: *ms(901)}.Arrival(), 900, 900},
		{
			"answered late, and acknowledged soon: sent + slack",
			limit.Sending{Sent: ms(3), Acked: ms(50), Answered: ms(900), Ended: *ms(901)}.Arrival(), 103, 103,
		},
		{
			"answered late, and acknowledged after slack: the acknowledgement",
			limit.Sending{Sent: ms(3), Acked: ms(450), Answered: ms(900), Ended: *ms(901)}.Arrival(), 450, 450,
		},
		{
			"no answer, and acknowledged after slack: the acknowledgement, or the reset + slack",
			limit.Sending{Sent: ms(3), Acked: ms(450), Ended: *ms(5000)}.Arrival(), 450, 5100,
		},
		{"no answer, and acknowledged: sent + slack, or the reset + slack", limit.Sending{Sent: ms(3), Acked: ms(50), Ended: *ms(5000)}.Arrival(), 103, 5100},
		{"no answer: the reset + slack", limit.Sending{Sent: ms(3), Ended: *ms(2000)}.Arrival(), 2100, 2100},
		{"no answer for long: as long as TCP sends again + slack, or the reset + slack", limit.Sending{Sent: ms(3), Ended: *ms(9000)}.Arrival(), 5103, 9100},
		{"own handler: its end", limit.Sending{Own: true, Ended: *ms(700)}.Arrival(), 700, 700},
		{"own handler that gave up: its end + slack", limit.Sending{Own: true, GaveUp: true, Ended: *ms(700)}.Arrival(), 800, 800},
		{
			"own handler, answered through its client: the answer, or its end",
			limit.Sending{Own: true, Sent: ms(3), Answered: ms(23), Ended: *ms(700)}.Arrival(), 23, 700,
		},
		{
			"own handler, answered late through its client: the answer, or its end",
			limit.Sending{Own: true, Sent: ms(3), Answered: ms(300), Ended: *ms(700)}.Arrival(), 300, 700,
		},
		{
			"own handler, answered late through its client, acknowledged soon: sent + slack, or its end",
			limit.Sending{Own: true, Sent: ms(3), Acked: ms(50), Answered: ms(300), Ended: *ms(700)}.Arrival(), 103, 700,
		},
		{
			"own handler, answered through its client, that gave up: the answer, or its end + slack",
			limit.Sending{Own: true, GaveUp: true, Sent: ms(3), Answered: ms(23), Ended: *ms(700)}.Arrival(), 23, 800,
		},
		{
			"own handler that waited for no answer: its end + slack",
			limit.Sending{Own: true, Sent: ms(3), Ended: *ms(50)}.Arrival(), 150, 150,
		},
		{"lost: as long as TCP sends again + slack, after the gate or the deadline", limit.LostArrival(*ms(250), *ms(31000), nil, nil, false), 5350, 36100},
		{"lost, acknowledged: the gate's last moment + slack, or as long as TCP sends again after the deadline", limit.LostArrival(*ms(250), *ms(31000), ms(60), nil, false), 350, 36100},
		{"lost with no gate: as long as TCP sends again after the deadline", limit.LostArrival(*ms(60000), *ms(31000), nil, nil, false), 36100, 36100},
	}
	pool := pgtest.New(t)
	for _, c := range cases {
		for anchor, after := range map[string]int64{"start": c.start, "finish": c.finish} {
			ledgertest.Trial(t, pool, c.name+", anchor "+anchor, func(t *testing.T, tx pgx.Tx) {
				id := ledgertest.Open(t, tx)
				ledgertest.Exec(t, tx, `UPDATE callq.call_limits SET anchor = $1, slack = '100 ms'`, anchor)
				startedAt := ledgertest.Start(t, tx, ledgertest.Request(id, 7))[7].StartedAt
				ledgertest.Exec(t, tx, `UPDATE callq.call_open SET send_within = NULL WHERE $1 LIKE '%no gate%'`, c.name)
				ledgertest.Close(t, tx, ledger.Closing{
					CallID: id, Attempt: 1, Token: 7, Outcome: callqueue.OutcomeError, Error: "x",
					Arrival: &c.arrival, Status: callqueue.StatusError, Failed: true, Delay: ms(1000),
				})
				ledgertest.Want(t, tx, `SELECT arrived_by = $1::timestamptz + $2 * interval '1 ms' FROM call_attempts`, startedAt, after)
				ledgertest.Want(t, tx, `SELECT status = 'error' AND failed_count = 1 AND unique_key IS NOT NULL AND error_message = 'x'
					AND run_at > now() FROM call_queue`)
			})
		}
	}
}

//callq:guarantee 5
func TestCloseIsCompareAndSet(t *testing.T) {
	t.Parallel()
	const none = `SELECT count(*) = 0 FROM call_attempts`
	cases := []struct {
		name    string
		started bool
		change  string
		closing ledger.Closing
		closes  bool
	}{
		{"by its token", true, ``, ledger.Closing{Attempt: 1, Token: 7}, true},
		{"by another token", true, ``, ledger.Closing{Attempt: 1, Token: 8}, false},
		{"as unstarted, once it has started", true, ``, ledger.Closing{Attempt: 1, Unstarted: true}, false},
		{"in doubt, started", true, ``, ledger.Closing{Attempt: 1, Token: 7, Unstarted: true}, true},
		{"in doubt, not started", false, ``, ledger.Closing{Attempt: 1, Token: 7, Unstarted: true}, true},
		{"by a token that never started it", false, ``, ledger.Closing{Attempt: 1, Token: 7}, false},
		{"a late result of an older attempt", true, `UPDATE callq.call_open SET attempt = 2`, ledger.Closing{Attempt: 1, Token: 7}, false},
	}
	pool := pgtest.New(t)
	for _, c := range cases {
		ledgertest.Trial(t, pool, c.name, func(t *testing.T, tx pgx.Tx) {
			id := ledgertest.Open(t, tx)
			if c.started {
				ledgertest.Start(t, tx, ledgertest.Request(id, 7))
			}
			if c.change != "" {
				ledgertest.Exec(t, tx, c.change)
			}
			c.closing.CallID, c.closing.Outcome, c.closing.Status = id, callqueue.OutcomeNotSent, callqueue.StatusNew
			closed, err := new(ledger.Closer).Close(t.Context(), tx, []ledger.Closing{c.closing, c.closing})
			if err != nil {
				t.Fatal(err)
			}
			if got := len(closed) == 1; got != c.closes || len(closed) > 1 {
				t.Errorf("closed %v, want %v", closed, c.closes)
			}
			if !c.closes {
				ledgertest.Want(t, tx, none)
				ledgertest.Want(t, tx, `SELECT status = 'dispatched' FROM call_queue`)
				return
			}
			ledgertest.Want(t, tx, `SELECT charged = '[]' AND arrived_by IS NULL FROM call_attempts`)
			ledgertest.Want(t, tx, `SELECT count(*) = 0 FROM callq.call_usage`)
			ledgertest.Want(t, tx, `SELECT status = 'new' FROM call_queue`)
		})
	}
}

// A call that was cancelled or deleted while its attempt ran keeps its status, and its unit stays used.
//
//callq:guarantee 5
func TestCloseLeavesTheCallThatMovedOn(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, change := range []string{`UPDATE call_queue SET status = 'cancelled'`, `DELETE FROM call_queue`} {
		ledgertest.Trial(t, pool, change, func(t *testing.T, tx pgx.Tx) {
			id := ledgertest.Open(t, tx)
			ledgertest.Start(t, tx, ledgertest.Request(id, 7))
			ledgertest.Exec(t, tx, change)
			by := time.Millisecond
			ledgertest.Close(t, tx, ledger.Closing{
				CallID: id, Attempt: 1, Token: 7, Outcome: callqueue.OutcomeDone,
				Arrival: &limit.Arrival{By: &by, EndBy: &by}, Status: callqueue.StatusDone,
			})
			ledgertest.Want(t, tx, `SELECT count(*) = 0 FROM call_queue WHERE status <> 'cancelled'`)
			ledgertest.Want(t, tx, `SELECT count(*) = 1 FROM call_attempts WHERE outcome = 'done'`)
			ledgertest.Want(t, tx, `SELECT sum(used) = 1 FROM callq.call_usage`)
		})
	}
}

// A close counts the failure of a cancelled call and leaves its status, also if the close began before the cancellation
// committed.
func TestCloseOfACancelledCall(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	before, during := ledgertest.Open(t, pool), ledgertest.Open(t, pool)
	ledgertest.Start(t, pool, ledgertest.Request(before, 7), ledgertest.Request(during, 8))
	const cancel = `UPDATE call_queue SET status = 'cancelled', finished_at = now() - interval '1 h', unique_key = NULL WHERE id = $1`
	ledgertest.Exec(t, pool, cancel, before)

	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, sql := range []string{`SELECT 1 FROM callq.call_open WHERE call_id = $1 FOR UPDATE`, cancel} {
		if _, err := tx.Exec(t.Context(), sql, during); err != nil {
			t.Fatal(err)
		}
	}
	later := time.Hour
	lost := ledger.Closing{
		Attempt: 1, Outcome: callqueue.OutcomeLost, Error: "x", Arrival: &limit.Arrival{}, Failed: true, Status: callqueue.StatusError, Delay: &later,
	}
	failed := lost
	lost.CallID, lost.Token = before, 7
	failed.CallID, failed.Token, failed.Status, failed.Delay = during, 8, callqueue.StatusFailed, nil
	closed := make(chan error, 1)
	go func() {
		_, err := new(ledger.Closer).Close(context.Background(), pool, []ledger.Closing{lost, failed})
		for ledger.Busy(err) { // it waits 100 ms for a lock, which this machine may take to commit
			_, err = new(ledger.Closer).Close(context.Background(), pool, []ledger.Closing{lost, failed})
		}
		closed <- err
	}()
	ledgertest.AwaitLocks(t, pool, 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	ledgertest.Want(t, pool, `SELECT count(*) = 2 FROM call_queue WHERE status = 'cancelled' AND failed_count = 1 AND failed_at IS NULL
		AND run_at <= now() AND finished_at > now() - interval '50 min' AND error_message = 'x'`)
	ledgertest.Want(t, pool, `SELECT count(*) = 2 FROM call_attempts WHERE outcome = 'lost'`)
	ledgertest.Want(t, pool, `SELECT sum(used) = 2 FROM callq.call_usage`)
	if report, err := verify.Run(t.Context(), pool, verify.Options{}); err != nil || len(report.Findings) > 0 {
		t.Errorf("verify: %+v, %v", report, err)
	}
}

// A recall makes way in the ledger, too.
func TestRecallOfAnIDThatIsUsedTwice(t *testing.T) {
	t.Parallel()
	ledgertest.Trial(t, pgtest.New(t), "recall", func(t *testing.T, tx pgx.Tx) {
		former := ledgertest.Open(t, tx)
		ledgertest.Close(t, tx, ledger.Closing{CallID: former, Attempt: 1, Unstarted: true, Outcome: callqueue.OutcomeNotSent, Status: callqueue.StatusNew})
		id := ledgertest.Open(t, tx)
		ledgertest.Exec(t, tx, `UPDATE call_attempts SET call_id = $1`, id)
		if n, err := ledger.Recall(t.Context(), tx, "limit", []string{"api"}, "", "a test"); n != 1 || err != nil {
			t.Errorf("recalled %d, %v", n, err)
		}
		ledgertest.Want(t, tx, `SELECT array_agg(attempt ORDER BY attempt) = '{0,1}' FROM call_attempts`)
	})
}
