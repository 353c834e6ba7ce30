package ledger_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

//callq:guarantee 2
func TestStartIsCompareAndSet(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	id := ledgertest.Open(t, pool)
	first := ledgertest.Start(t, pool, ledgertest.Request(id, 7))[7]
	if first.Refused != nil || first.SendWithin == nil || *first.SendWithin != 300*time.Millisecond {
		t.Fatalf("the first start answered %+v", first)
	}
	if again := ledgertest.Start(t, pool, ledgertest.Request(id, 7))[7]; again.Refused != nil || !again.StartedAt.Equal(first.StartedAt) {
		t.Errorf("the same token asked again: %+v, want the first answer", again)
	}
	if other := ledgertest.Start(t, pool, ledgertest.Request(id, 8))[8]; !errors.Is(other.Refused, ledger.ErrNotOpen) {
		t.Errorf("another token started the same attempt, or may ask again: %v", other.Refused)
	}
	id = ledgertest.Open(t, pool)
	twice := ledgertest.Start(t, pool, ledgertest.Request(id, 7), ledgertest.Request(id, 8))
	if (twice[7].Refused == nil) == (twice[8].Refused == nil) {
		t.Errorf("two deliveries of one attempt in a batch: %+v, want exactly one started", twice)
	}
}

// The text of call_data that is too much is not kept for the statement's end: of a whole batch it would fill the disk.
//
//callq:guarantee 12
func TestStartKeepsNoLargeText(t *testing.T) {
	t.Parallel()
	ledgertest.Trial(t, pgtest.New(t), "few bytes, many digits", func(t *testing.T, tx pgx.Tx) {
		ledgertest.Exec(t, tx, `SET LOCAL temp_file_limit = 0`)
		var requests []ledger.StartRequest
		for token := range int64(3) {
			requests = append(requests, ledger.StartRequest{CallID: ledgertest.Open(t, tx), Attempt: 1, Token: token + 1})
		}
		ledgertest.Exec(t, tx, `UPDATE call_queue SET call_data = (SELECT jsonb_agg(jsonb '1e131071') FROM generate_series(1, 100))`)
		for _, answer := range ledgertest.Start(t, tx, requests...) {
			if !errors.Is(answer.Refused, ledger.ErrTooLarge) {
				t.Errorf("got %+v, want too large", answer)
			}
		}
	})
}

// On a server that commits asynchronously, and a pool that is not callq's own.
func TestStartIsDurable(t *testing.T) {
	t.Parallel()
	ledgertest.Trial(t, pgtest.New(t), "asynchronous", func(t *testing.T, tx pgx.Tx) {
		ledgertest.Exec(t, tx, `SET LOCAL synchronous_commit = off`)
		ledgertest.Start(t, tx, ledgertest.Request(ledgertest.Open(t, tx), 7))
		ledgertest.Want(t, tx, `SELECT current_setting('synchronous_commit') = 'on'`)
	})
}

//callq:guarantee 2
func TestStartRefuses(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		change  string
		refused error
	}{
		{"an attempt of an older epoch", `UPDATE callq.call_open SET epoch = 'older'`, ledger.ErrNotOpen},
		{"one whose time to start has passed", `UPDATE callq.call_open SET start_by = now() - interval '1 s'`, ledger.ErrNotOpen},
		{"a later attempt's row", `UPDATE callq.call_open SET attempt = 2`, ledger.ErrNotOpen},
		{"a call that was deleted", `DELETE FROM call_queue`, ledger.ErrGone},
		{"a call that was cancelled", `UPDATE call_queue SET status = 'cancelled'`, ledger.ErrGone},
		{"a call whose time has passed", `UPDATE call_queue SET expires_at = now()`, ledger.ErrExpired},
		{"no row", `DELETE FROM callq.call_open`, ledger.ErrNotOpen},
	}
	pool := pgtest.New(t)
	for _, c := range cases {
		ledgertest.Trial(t, pool, c.name, func(t *testing.T, tx pgx.Tx) {
			id := ledgertest.Open(t, tx)
			ledgertest.Exec(t, tx, c.change)
			got := ledgertest.Start(t, tx, ledgertest.Request(id, 7))[7]
			if !errors.Is(got.Refused, c.refused) {
				t.Errorf("refused for %v, want %v", got.Refused, c.refused)
			}
		})
	}
	// After a failover that lost calls their ids are given out again: what was loaded under a former epoch is another call.
	r := ledgertest.Request(ledgertest.Open(t, pool), 7)
	r.Epoch = "former"
	if got := ledgertest.Start(t, pool, r)[7]; !errors.Is(got.Refused, ledger.ErrNotOpen) {
		t.Errorf("started as of a former epoch: %+v", got)
	}
	if err := pool.QueryRow(t.Context(), `SELECT epoch FROM callq.call_open`).Scan(&r.Epoch); err != nil {
		t.Fatal(err)
	}
	if got := ledgertest.Start(t, pool, r)[7]; got.Refused != nil {
		t.Errorf("not started as of its own epoch: %v", got.Refused)
	}
}

// A start that lingered waits for what is left of its wait, and says how long ago it was asked.
func TestStartThatLingered(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := ledgertest.Request(ledgertest.Open(t, pool), 7)
	r.Wait, r.Asked = 80*time.Millisecond, time.Now().Add(-30*time.Millisecond)
	got := ledgertest.Start(t, pool, r)[7]
	if got.After < 30*time.Millisecond || got.Wait > 80*time.Millisecond-got.After || got.After < 70*time.Millisecond && got.Wait == 0 {
		t.Errorf("sent %s after it was asked, it waits %s of 80ms", got.After, got.Wait)
	}
	ledgertest.Exec(t, pool, `UPDATE callq.call_open SET started_at = started_at - interval '1 s'`)
	if again := ledgertest.Start(t, pool, r)[7]; again.Refused != nil || again.After != 0 || again.Wait != 0 {
		t.Errorf("an earlier statement started it, and the answer is %+v", again)
	}
}

// Who does not say how long the handler may take has not read the attempt: the answer has it all.
func TestStartAnswersWithTheWork(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	id := ledgertest.Open(t, pool)
	ledgertest.Exec(t, pool, `INSERT INTO callq.call_queues VALUES ('default', '{}', '', 4, '2 s', '3 min', '7 s', 'retry')`)
	ledgertest.Exec(t, pool, `UPDATE call_queue SET call_data = '{"n": 1}', failed_count = 2, run_at = created_at + interval '1 s'`)
	ledgertest.Exec(t, pool, `UPDATE callq.call_limits SET window_size = '0'`)
	if told := ledgertest.Start(t, pool, ledgertest.Request(id, 7))[7]; told.Work != nil {
		t.Errorf("nobody asked for %+v", told.Work)
	}
	ledgertest.Exec(t, pool, `UPDATE callq.call_open SET token = NULL, started_at = NULL, deadline = NULL`)
	got := ledgertest.Start(t, pool, ledger.StartRequest{CallID: id, Attempt: 1, Token: 7})[7]
	var want ledger.Work
	var inTime bool
	err := pool.QueryRow(t.Context(), `
		SELECT o.epoch, o.queue, o.task, o.key, o.cost, limits, keys, costs, deadline = started_at + interval '8 s', q.created_at
		FROM callq.call_open o JOIN call_queue q ON q.id = call_id WHERE call_id = $1`, id).
		Scan(&want.Epoch, &want.Queue, &want.Task, &want.Key, &want.Cost, &want.Limits, &want.Keys, &want.Costs, &inTime, &want.CreatedAt)
	if err != nil {
		t.Fatal(err)
	}
	want.DueAt = want.CreatedAt.Add(time.Second)
	want.Data, want.FailedCount, want.Timeout, want.Frees = []byte(`{"n": 1}`), 2, 7*time.Second, true
	want.Policy = ledger.Policy{MaxAttempts: 4, BackoffMin: 2 * time.Second, BackoffMax: 3 * time.Minute}
	if !reflect.DeepEqual(got.Work, &want) {
		t.Errorf("got %+v, want %+v", got.Work, want)
	}
	if !inTime {
		t.Error("the deadline is not the queue's timeout after the start")
	}
	ledgertest.Exec(t, pool, `UPDATE callq.call_queues SET timeout = '2 h'`)
	again := ledgertest.Start(t, pool, ledger.StartRequest{CallID: id, Attempt: 1, Token: 7})[7]
	if again.Work == nil || again.Work.Timeout != 7*time.Second {
		t.Errorf("asked again once the queue's timeout was raised, it got %+v; its deadline is the first start's", again.Work)
	}
}

// An attempt whose row somebody's transaction holds keeps no other from starting, and starts once that has ended.
//
//callq:guarantee 12
func TestStartWaitsForNoOther(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	var requests []ledger.StartRequest
	for i := range int64(3) {
		requests = append(requests, ledgertest.Request(ledgertest.Open(t, pool), i+1))
	}
	requests = append(requests, ledgertest.Request(999, 4)) // not open
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.Background())
	if _, err := holder.Exec(t.Context(), `SELECT FROM callq.call_open WHERE call_id = $1 FOR UPDATE`, requests[1].CallID); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := ledger.Start(ctx, pool, "w", requests); !ledger.Busy(err) {
		t.Errorf("one statement with it: %v, want it to be busy", err)
	}
	answers, err := ledger.StartFree(t.Context(), pool, "w", requests)
	if err != nil || len(answers) != 4 {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	for i, a := range answers {
		if want := []error{nil, ledger.ErrBusy, nil, ledger.ErrNotOpen}[i]; a.Token != requests[i].Token || !errors.Is(a.Refused, want) {
			t.Errorf("request %d: %+v, want it refused for %v", i, a, want)
		}
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := ledgertest.Start(t, pool, requests...)
	for i, a := range answers {
		b := again[a.Token]
		if (b.Refused != nil) != (i == 3) || a.Refused == nil && !b.StartedAt.Equal(a.StartedAt) {
			t.Errorf("request %d, once it is free: %+v, was %+v", i, b, a)
		}
	}
}
