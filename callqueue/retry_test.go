package callqueue_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/limit"
)

// endedSQL makes call 1 done, 2 failed after three attempts, 3 cancelled, 4 cancelled while it runs, 5 new,
// 6 in error, 7 dispatched, 8 expired.
const endedSQL = `
INSERT INTO call_queue (status, attempts, failed_count, key, error_message, finished_at, failed_at, expires_at, run_at) VALUES
    ('done', 1, 0, 'k', NULL, now(), NULL, NULL, now()),
    ('failed', 3, 3, 'k', 'busy', now(), now(), now() + interval '1 h', now() + interval '1 h'),
    ('cancelled', 0, 0, 'k', NULL, now(), NULL, NULL, 'infinity'),
    ('cancelled', 1, 0, 'k', NULL, now(), NULL, NULL, now()),
    ('new', 0, 0, 'k', NULL, NULL, NULL, NULL, now()),
    ('error', 1, 1, 'k', 'busy', now(), NULL, NULL, now() + interval '1 h'),
    ('dispatched', 1, 0, 'k', NULL, NULL, NULL, NULL, now()),
    ('failed', 0, 0, 'k', 'expired', now(), now(), now() - interval '1 s', now());
UPDATE call_queue SET dispatched_at = now() WHERE attempts > 0;
INSERT INTO call_attempts (call_id, attempt, requests, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
SELECT id, a, 1, 1, now(), now(), now(), now(), CASE status WHEN 'done' THEN 'done' ELSE 'error' END, 'default', 'http', 'k', '[]'
FROM call_queue, generate_series(1, attempts) AS a
WHERE id IN (1, 2, 6);
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, deadline, token, worker, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now(), CASE id WHEN 4 THEN now() END, CASE id WHEN 4 THEN now() + interval '1 h' END,
    CASE id WHEN 4 THEN 7 END, CASE id WHEN 4 THEN 'w' END, callq.epoch(), 'http', 'default', 'http', 'k', '{}', '{}', '{}'
FROM call_queue
WHERE id IN (4, 7)`

func TestRetry(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	ledgertest.Exec(t, pool, endedSQL)
	got, err := client.Retry(t.Context(), 8, 1, 99, 2, 3, 2, 4, 5, 6, 7, -1)
	want := []callqueue.ChangeResult{
		{ID: 8, Changed: true, Status: callqueue.StatusNew},
		{ID: 1, Status: callqueue.StatusDone},
		{ID: 2, Changed: true, Status: callqueue.StatusNew},
		{ID: 3, Changed: true, Status: callqueue.StatusNew},
		{ID: 4, Status: callqueue.StatusCancelled, Open: true},
		{ID: 5, Status: callqueue.StatusNew},
		{ID: 6, Status: callqueue.StatusError},
		{ID: 7, Status: callqueue.StatusDispatched, Open: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	notFound, ok := errors.AsType[*callqueue.NotFoundError](err)
	if !ok || !slices.Equal(notFound.IDs, []int64{99, -1}) {
		t.Errorf("got %v, want not found: 99 and -1", err)
	}
	ledgertest.Want(t, pool, `SELECT array_agg(id ORDER BY id) = '{2,3,5,8}' AND bool_and(failed_count = 0 AND run_at <= clock_timestamp()
		AND finished_at IS NULL AND failed_at IS NULL AND error_message IS NULL)
		FROM call_queue WHERE status = 'new'`)
	ledgertest.Want(t, pool, `SELECT attempts = 3 AND retried_after = 3 AND expires_at > now() FROM call_queue WHERE id = 2`)
	ledgertest.Want(t, pool, `SELECT expires_at IS NULL FROM call_queue WHERE id = 8`)
	ledgertest.Want(t, pool, `SELECT count(*) = 2 FROM callq.call_open`)
	ledgertest.Want(t, pool, `SELECT count(*) = 5 FROM call_attempts`)

	if got, err := client.Retry(t.Context(), 2); err != nil || got[0].Changed {
		t.Errorf("again: %+v, %v", got, err)
	}
	if got, err := client.RetryDone(t.Context(), 1); err != nil || !got[0].Changed {
		t.Errorf("what is done, when asked for: %+v, %v", got, err)
	}
	verified(t, pool)

	// It counts from then on, from its next attempt's number.
	ledgertest.Exec(t, pool, claimSQL, []int64{2})
	ledgertest.Exec(t, pool, startedSQL, 2)
	fails := ledger.Closing{CallID: 2, Attempt: 4, Token: 7, Outcome: callqueue.OutcomeError, Status: callqueue.StatusError, Failed: true, Delay: new(time.Hour), Arrival: &limit.Arrival{}}
	if closed, err := new(ledger.Closer).Close(t.Context(), pool, []ledger.Closing{fails}); err != nil || len(closed) != 1 {
		t.Fatal(closed, err)
	}
	ledgertest.Want(t, pool, `SELECT failed_count = 1 AND attempts = 4 AND status = 'error' FROM call_queue WHERE id = 2`)
	verified(t, pool)
}

// An attempt of a cancelled call is being closed while it is retried: it counts as open until that has
// happened, and the retry does not lose what the closing writes.
func TestRetryMeetsAClosing(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	ledgertest.Exec(t, pool, endedSQL)
	closing := begin(t, pool)
	ends := ledger.Closing{CallID: 4, Attempt: 1, Token: 7, Outcome: callqueue.OutcomeError, Status: callqueue.StatusError, Failed: true}
	if closed, err := new(ledger.Closer).Close(t.Context(), closing, []ledger.Closing{ends}); err != nil || len(closed) != 1 {
		t.Fatal(closed, err)
	}
	retried := make(chan callqueue.ChangeResult, 1)
	go func() {
		got, err := client.Retry(context.Background(), 4)
		if err != nil || len(got) != 1 {
			t.Errorf("%+v, %v", got, err)
			got = make([]callqueue.ChangeResult, 1)
		}
		retried <- got[0]
	}()
	ledgertest.AwaitLocks(t, pool, 1)
	if err := closing.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-retried; !got.Changed {
		t.Errorf("got %+v", got)
	}
	ledgertest.Want(t, pool, `SELECT status = 'new' AND failed_count = 0 AND retried_after = 1 AND finished_at IS NULL FROM call_queue WHERE id = 4`)
}

func TestDelete(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	ledgertest.Exec(t, pool, endedSQL)
	got, err := client.Delete(t.Context(), 7, 1, 99, 2, 3, 4, 5, 6)
	want := []callqueue.ChangeResult{
		{ID: 7, Status: callqueue.StatusDispatched, Open: true},
		{ID: 1, Changed: true, Status: callqueue.StatusDone},
		{ID: 2, Changed: true, Status: callqueue.StatusFailed},
		{ID: 3, Changed: true, Status: callqueue.StatusCancelled},
		{ID: 4, Status: callqueue.StatusCancelled, Open: true},
		{ID: 5, Changed: true, Status: callqueue.StatusNew},
		{ID: 6, Changed: true, Status: callqueue.StatusError},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, callqueue.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	// No unit comes free: what was charged stays so, and what is open.
	ledgertest.Want(t, pool, `SELECT array_agg(id ORDER BY id) = '{4,7,8}' FROM call_queue`)
	ledgertest.Want(t, pool, `SELECT count(*) = 5 FROM call_attempts`)
	ledgertest.Want(t, pool, `SELECT count(*) = 2 FROM callq.call_open`)
	if _, err := client.Delete(t.Context(), 1); !errors.Is(err, callqueue.ErrNotFound) {
		t.Errorf("again: %v", err)
	}
}

// Claims, retries, cancels, deletions and closings of the same calls, in opposite orders: nothing
// deadlocks, no call waits that has an open attempt, and verify finds nothing.
func TestChangesRace(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	client, pool := another(t, base, func(c *pgxpool.Config) { maps.Copy(c.ConnConfig.RuntimeParams, ledger.Settings()) })
	const n = 40
	ledgertest.Exec(t, pool, `INSERT INTO call_queue (status, finished_at) SELECT 'cancelled', now() FROM generate_series(1, $1::integer)`, n)
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(i + 1)
	}
	var all sync.WaitGroup
	gate := make(chan struct{})
	lane := func(do func(ctx context.Context, ids []int64) error) {
		mine := slices.Clone(ids)
		rand.Shuffle(n, func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
		all.Go(func() {
			<-gate
			for range 15 {
				if err := do(context.Background(), mine); err != nil && !errors.Is(err, callqueue.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		lane(func(ctx context.Context, ids []int64) error { _, err := client.RetryDone(ctx, ids...); return err })
		lane(func(ctx context.Context, ids []int64) error { _, err := client.Cancel(ctx, ids...); return err })
		lane(func(ctx context.Context, ids []int64) error {
			_, err := pool.Exec(ctx, claimSQL, ids[:n/2])
			return err
		})
		lane(func(ctx context.Context, ids []int64) error {
			var ends []ledger.Closing
			for _, id := range ids {
				for attempt := range int32(3) {
					ends = append(ends, ledger.Closing{
						CallID: id, Attempt: attempt + 1, Unstarted: true, Outcome: callqueue.OutcomePermanent, Status: callqueue.StatusFailed, Failed: true,
					})
				}
			}
			return untilFree(func() error { _, err := new(ledger.Closer).Close(ctx, pool, ends); return err })
		})
	}
	lane(func(ctx context.Context, ids []int64) error { _, err := client.Delete(ctx, ids[0]); return err })
	close(gate)
	all.Wait()
	ledgertest.Want(t, pool, `SELECT count(*) = 0 FROM callq.call_open o JOIN call_queue q ON q.id = o.call_id WHERE q.status IN ('new', 'error')`)
	ledgertest.Want(t, pool, `SELECT count(*) > 0 FROM call_queue WHERE retried_after IS NOT NULL`)
	verified(t, pool)
}

// A call that is retried takes its unique key back, by every way in which it had ended; while another call has it, it is left alone.
func TestRetryTakesTheKeyBack(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	insert := func() (int64, error) { return client.Insert(t.Context(), callqueue.Call{UniqueKey: "order-1"}) }
	retry := func(ids ...int64) (changed []bool, of []int64) {
		t.Helper()
		results, err := client.Retry(t.Context(), ids...)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			changed = append(changed, r.Changed)
			if r.DuplicateOf != nil {
				of = append(of, *r.DuplicateOf)
			}
		}
		return changed, of
	}
	cancel := func(id int64) {
		t.Helper()
		if _, err := client.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	must := func(id int64, err error) int64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := must(insert())
	cancel(first)
	second := must(insert())
	if changed, of := retry(first); changed[0] || !slices.Equal(of, []int64{second}) {
		t.Errorf("while another call has the key: %v, %v", changed, of)
	}
	cancel(second)
	if changed, of := retry(second, first); !slices.Equal(changed, []bool{false, true}) || !slices.Equal(of, []int64{first}) {
		t.Errorf("two that had the key: %v, %v", changed, of)
	}
	if id, err := insert(); !errors.Is(err, callqueue.ErrDuplicate) || id != first {
		t.Errorf("inserted %d, %v, want a duplicate of %d", id, err, first)
	}

	// By a close.
	third := ledgertest.Open(t, pool)
	ledgertest.Exec(t, pool, `UPDATE call_queue SET unique_key = 'order-3' WHERE id = $1`, third)
	ledgertest.Start(t, pool, ledgertest.Request(third, 7))
	ledgertest.Close(t, pool, ledger.Closing{CallID: third, Attempt: 1, Token: 7, Outcome: callqueue.OutcomePermanent, Status: callqueue.StatusFailed, Failed: true, Arrival: &limit.Arrival{}})
	ledgertest.Want(t, pool, `SELECT status = 'failed' AND unique_key IS NULL AND ended_key = 'order-3' FROM call_queue WHERE id = $1`, third)
	if changed, _ := retry(third); !changed[0] {
		t.Error("it was not retried")
	}
	ledgertest.Want(t, pool, `SELECT unique_key = 'order-3' AND ended_key IS NULL FROM call_queue WHERE id = $1`, third)
}

// Whoever retries a call while others insert its key: one of them has it.
func TestRetryBesideInserts(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	for range 20 {
		ledgertest.Exec(t, pool, `TRUNCATE call_queue`)
		ended, err := client.Insert(t.Context(), callqueue.Call{UniqueKey: "k"})
		if err == nil {
			_, err = client.Cancel(t.Context(), ended)
		}
		if err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := client.Retry(t.Context(), ended); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			if _, err := client.Insert(t.Context(), callqueue.Call{UniqueKey: "k"}); err != nil && !errors.Is(err, callqueue.ErrDuplicate) {
				t.Error(err)
			}
		})
		both.Wait()
		ledgertest.Want(t, pool, `SELECT count(*) = 1 FROM call_queue WHERE unique_key = 'k'`)
		ledgertest.Want(t, pool, `SELECT count(*) = 1 FROM call_queue WHERE status = 'new'`)
	}
}

// With a new key a call counts as inserted now: that is what its Idempotency-Key is made of.
func TestRetryWithANewKey(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	id, err := client.Insert(t.Context(), callqueue.Call{})
	if err == nil {
		_, err = client.Cancel(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	created := func() (at time.Time) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT created_at FROM call_queue WHERE id = $1`, id).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	before := created()
	for _, newKey := range []bool{false, true} {
		if _, err := client.RetryWith(t.Context(), callqueue.RetryOptions{NewKey: newKey}, id); err != nil {
			t.Fatal(err)
		}
		if got := created(); got.After(before) != newKey {
			t.Errorf("new key %v: created at %s, before %s", newKey, got, before)
		}
		if _, err := client.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}
