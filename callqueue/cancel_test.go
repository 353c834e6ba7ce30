package callqueue_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
)

const (
	// claimSQL opens attempts of those of the calls that wait, as a claim does: what is locked is passed over.
	claimSQL = `
WITH picked AS MATERIALIZED (
    SELECT id FROM call_queue WHERE id = ANY($1::bigint[]) AND status IN ('new', 'error') FOR UPDATE SKIP LOCKED
), call AS (
    UPDATE call_queue q SET status = 'dispatched', attempts = attempts + 1, dispatched_at = clock_timestamp() FROM picked p WHERE q.id = p.id RETURNING q.*
)
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, attempts, 0, 1, cost, dispatched_at, clock_timestamp(), clock_timestamp() + interval '30 s', callq.epoch(), 'http',
    queue, task, key, '{}', '{}', '{}'
FROM call`
	startedSQL = `UPDATE callq.call_open SET token = 7, started_at = clock_timestamp(), deadline = clock_timestamp() + interval '1 h', worker = 'w' WHERE call_id = $1`
)

func TestCancel(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	ledgertest.Exec(t, pool, `INSERT INTO call_queue (queue, key, unique_key, status, finished_at, failed_at)
		SELECT 'q' || n, 'k', CASE WHEN n <= 4 THEN 'u' END, coalesce(status, 'new'), CASE WHEN n > 4 THEN now() END, CASE WHEN n = 6 THEN now() END
		FROM generate_series(1, 9) AS n LEFT JOIN (VALUES (5, 'done'), (6, 'failed'), (7, 'cancelled')) AS v (n, status) USING (n)`)
	ledgertest.Exec(t, pool, `UPDATE call_queue SET status = 'error', error_message = 'busy', run_at = now() + interval '1 h' WHERE id = 2`)
	ledgertest.Exec(t, pool, claimSQL, []int64{3, 4, 8})
	ledgertest.Exec(t, pool, startedSQL, 4)
	ledgertest.Exec(t, pool, startedSQL, 8)
	ledgertest.Exec(t, pool, `UPDATE call_queue SET status = 'cancelled' WHERE id = 8`)
	ledgertest.Exec(t, pool, `UPDATE call_queue SET status = 'dispatched' WHERE id = 9`) // with no attempt: it would never end

	got, err := client.Cancel(t.Context(), 7, 1, 99, 2, 3, 4, 4, 5, 6, 8, 9, -1, 1)
	want := []callqueue.ChangeResult{
		{ID: 7, Status: callqueue.StatusCancelled},
		{ID: 1, Changed: true, Status: callqueue.StatusCancelled},
		{ID: 2, Changed: true, Status: callqueue.StatusCancelled},
		{ID: 3, Changed: true, Status: callqueue.StatusCancelled},
		{ID: 4, Changed: true, Status: callqueue.StatusCancelled, Open: true},
		{ID: 5, Status: callqueue.StatusDone},
		{ID: 6, Status: callqueue.StatusFailed},
		{ID: 8, Status: callqueue.StatusCancelled, Open: true},
		{ID: 9, Changed: true, Status: callqueue.StatusCancelled},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	notFound, ok := errors.AsType[*callqueue.NotFoundError](err)
	if !ok || !errors.Is(err, callqueue.ErrNotFound) || !slices.Equal(notFound.IDs, []int64{99, -1}) {
		t.Errorf("got %v, want ErrNotFound of 99 and -1", err)
	}

	ledgertest.Want(t, pool, `SELECT count(*) = 7 AND bool_and(unique_key IS NULL AND finished_at IS NOT NULL AND failed_at IS NULL
		AND failed_count = 0) FROM call_queue WHERE status = 'cancelled'`)
	ledgertest.Want(t, pool, `SELECT error_message = 'busy' FROM call_queue WHERE id = 2`)
	// What had not started is over and charged to nothing; what had is its worker's to end.
	ledgertest.Want(t, pool, `SELECT array_agg(call_id ORDER BY call_id) = '{4,8}' AND bool_and(started_at IS NOT NULL) FROM callq.call_open`)
	ledgertest.Want(t, pool, `SELECT array_agg(call_id) = '{3}' AND bool_and(attempt = 1 AND outcome = 'cancelled' AND charged = '[]' AND started_at IS NULL
		AND arrived_by IS NULL AND requests IS NULL AND queue = 'q3' AND task = 'http' AND key = 'k') FROM call_attempts`)

	if got, err := client.Cancel(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("no ids: %v, %v", got, err)
	}
	if _, err := client.Insert(t.Context(), callqueue.Call{Queue: "q4", UniqueKey: "u"}); err != nil {
		t.Errorf("the unique key of a call that was cancelled while it ran: %v", err)
	}
}

//callq:guarantee 12
func TestCancelMany(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	ids, err := client.InsertMany(t.Context(), make([]callqueue.Call, 1200))
	if err != nil {
		t.Fatal(err)
	}
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	got, err := client.Cancel(t.Context(), ids...)
	if err != nil || len(got) != len(ids) {
		t.Fatalf("%d, %v", len(got), err)
	}
	for i, c := range got {
		if c.ID != ids[i] || !c.Changed {
			t.Fatalf("number %d is %+v, want call %d", i, c, ids[i])
		}
	}
	ledgertest.Want(t, pool, `SELECT count(*) = 1200 FROM call_queue WHERE status = 'cancelled'`)
}

// A claim commits while Cancel waits for the call's lock. The attempt is not left behind, and Cancel
// begins anew to lock it, for whoever closes it has locked it before the call.
func TestCancelMeetsAClaim(t *testing.T) {
	t.Parallel()
	_, pool := newClient(t)
	var locks atomic.Int32
	client, _ := another(t, pool, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = onStatement(func(sql string) {
			if strings.Contains(sql, "SELECT call_id FROM callq.call_open") {
				locks.Add(1)
			}
		})
	})
	id, err := client.Insert(t.Context(), callqueue.Call{})
	if err != nil {
		t.Fatal(err)
	}
	claim := begin(t, pool)
	if _, err := claim.Exec(t.Context(), claimSQL, []int64{id}); err != nil {
		t.Fatal(err)
	}
	cancelled := make(chan error, 1)
	go func() {
		got, err := client.Cancel(context.Background(), id)
		if err == nil && (len(got) != 1 || !got[0].Changed || got[0].Open) {
			t.Errorf("got %+v", got)
		}
		cancelled <- err
	}()
	ledgertest.AwaitLocks(t, pool, 1)
	if err := claim.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-cancelled; err != nil {
		t.Fatal(err)
	}
	if n := locks.Load(); n != 2 {
		t.Errorf("open attempts were locked %d times, want 2", n)
	}
	ledgertest.Want(t, pool, `SELECT status = 'cancelled' FROM call_queue`)
	ledgertest.Want(t, pool, `SELECT count(*) = 0 FROM callq.call_open`)
	ledgertest.Want(t, pool, `SELECT count(*) = 1 FROM call_attempts WHERE outcome = 'cancelled' AND attempt = 1`)
}

// Cancels against starts, closings and one another, in opposite orders: no deadlock, each call is
// cancelled once, and an attempt has either ended unstarted or runs.
func TestCancelRaces(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	client, pool := another(t, base, func(c *pgxpool.Config) { c.MaxConns = 8 })
	for range 5 {
		ledgertest.Exec(t, pool, `TRUNCATE call_queue, callq.call_open, call_attempts`)
		const n = 40
		ids, err := client.InsertMany(t.Context(), make([]callqueue.Call, n))
		if err != nil {
			t.Fatal(err)
		}
		ledgertest.Exec(t, pool, claimSQL, ids)
		var mu sync.Mutex
		times := map[int64]int{}
		var all sync.WaitGroup
		gate := make(chan struct{})
		for range 3 {
			mine := slices.Clone(ids)
			rand.Shuffle(n, func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			all.Go(func() {
				<-gate
				got, err := client.Cancel(context.Background(), mine...)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, c := range got {
					if c.Changed {
						times[c.ID]++
					}
				}
			})
		}
		for lane := range 4 {
			all.Go(func() {
				<-gate
				for some := range slices.Chunk(ids, n/4) {
					if err := startAndClose(pool, some, lane); err != nil {
						t.Error(err)
					}
				}
			})
		}
		close(gate)
		all.Wait()
		var cancelled int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM call_queue WHERE status = 'cancelled'`).Scan(&cancelled); err != nil {
			t.Fatal(err)
		}
		if len(times) != cancelled {
			t.Errorf("%d calls are cancelled, and %d were said to be", cancelled, len(times))
		}
		for id, n := range times {
			if n != 1 {
				t.Errorf("call %d was cancelled %d times", id, n)
			}
		}
		ledgertest.Want(t, pool, `SELECT count(*) = 0 FROM callq.call_open WHERE started_at IS NULL`)
		ledgertest.Want(t, pool, `SELECT count(*) = 0 FROM call_queue q JOIN call_attempts a ON a.call_id = q.id WHERE q.status = 'done' AND a.outcome <> 'done'`)
		verified(t, pool)
	}
}

// startAndClose starts attempts in the order given and ends every other one.
func startAndClose(pool *pgxpool.Pool, ids []int64, lane int) error {
	var starts []ledger.StartRequest
	var ends []ledger.Closing
	for i, id := range ids {
		token := int64(lane + 1)
		starts = append(starts, ledger.StartRequest{CallID: id, Attempt: 1, Token: token, Timeout: time.Minute})
		if i%2 == 0 {
			ends = append(ends, ledger.Closing{CallID: id, Attempt: 1, Token: token, Outcome: callqueue.OutcomeDone, Status: callqueue.StatusDone, Requests: new(int16(1)), Arrival: &limit.Arrival{}})
		}
	}
	if lane%2 == 1 {
		slices.Reverse(starts)
		slices.Reverse(ends)
	}
	err := untilFree(func() error { _, err := ledger.Start(context.Background(), pool, "w", starts); return err })
	if err != nil {
		return err
	}
	return untilFree(func() error { _, err := new(ledger.Closer).Close(context.Background(), pool, ends); return err })
}

// untilFree tries again while others hold rows for longer than is waited for, as a worker does.
func untilFree(try func() error) error {
	err := try()
	for ledger.Busy(err) {
		err = try()
	}
	return err
}

// verified fails the test if verify finds something.
func verified(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	report, err := verify.Run(t.Context(), pool, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Findings {
		t.Errorf("found %+v", v)
	}
}
