package tasks_test

import (
	"context"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/tasks"
)

// hold has an open transaction hold calls' rows until it is released.
func (b *bench) hold(calls []int64) (release func()) {
	b.t.Helper()
	holder, err := b.pool.Begin(b.t.Context())
	if err == nil {
		_, err = holder.Exec(b.t.Context(), `SET idle_in_transaction_session_timeout = 0`)
	}
	if err == nil {
		_, err = holder.Exec(b.t.Context(), `UPDATE call_queue SET error_message = 'mine' WHERE id = ANY($1)`, calls)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return func() {
		if err := holder.Commit(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	}
}

// Somebody's open transaction on the rows of some running calls keeps only their outcomes waiting.
//
//callq:guarantee 12
func TestOutcomesWaitForNoOther(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	b := newBench(t, map[string]tasks.Handler{
		"held":  func(context.Context, *tasks.Call) error { begun <- struct{}{}; <-end; return nil },
		"quick": func(context.Context, *tasks.Call) error { return nil },
	})
	var held []int64
	for range 3 { // of 4 slots
		held = append(held, b.insert("held"))
		<-begun
	}
	release := b.hold(held)
	for range held { // one after the other, so that each is in a statement of its own
		end <- struct{}{}
		b.await(`SELECT clock_timestamp() > $1::timestamptz`, time.Now().Add(200*time.Millisecond))
	}
	began := time.Now()
	for range 40 {
		b.insert("quick")
	}
	b.await(`SELECT count(*) = 40 FROM call_attempts WHERE task = 'quick' AND outcome = 'done'`)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("40 calls took %s", took)
	}
	b.await(`SELECT count(*) = 3 FROM call_open`)
	release()
	for _, id := range held {
		if outcome, _, charges := b.ended(id, callqueue.StatusDone); outcome != "done" || charges != 1 {
			t.Errorf("call %d ended %s, charged %d", id, outcome, charges)
		}
	}
	b.verify()
}

// An outcome that waits for somebody's transaction is not lost meanwhile: its attempt stays open, however long that takes.
func TestOutcomeThatWaitsIsNotLost(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	b := newBench(t, map[string]tasks.Handler{
		"held": func(context.Context, *tasks.Call) error { begun <- struct{}{}; <-end; return nil },
	})
	var held []int64
	for range 3 {
		held = append(held, b.insertCall(callqueue.Call{Queue: "short", Task: "held"}))
		<-begun
	}
	release := b.hold(held)
	close(end)
	b.await(`SELECT count(*) = 3 AND bool_and(clock_timestamp() > started_at + interval '5 s') FROM call_open`)
	b.await(`SELECT count(*) = 3 AND bool_and(deadline > clock_timestamp()) FROM call_open`)
	release()
	for _, id := range held {
		b.ended(id, callqueue.StatusDone)
	}
	b.await(`SELECT count(*) = 3 FROM call_attempts`)
	b.verify()
}
