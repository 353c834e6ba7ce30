package tasks_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/tasks"
)

// 300 calls leave nothing in Redis but a few keys that do not grow in number.
//
//callq:guarantee 8
func TestRedisStaysSmall(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]tasks.Handler{"ok": func(context.Context, *tasks.Call) error { return nil }})
	b.exec(`INSERT INTO call_queue (task) SELECT 'ok' FROM generate_series(1, 300)`)
	b.await(`SELECT count(*) = 300 FROM call_queue WHERE status = 'done'`)
	b.drain()
	info, err := asynq.NewInspectorFromRedisClient(b.redis).GetQueueInfo(b.broker().Queue(b.workerPool()))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size != 0 || info.Completed != 0 || info.ProcessedTotal == 0 {
		t.Errorf("the Asynq queue has %+v", info)
	}
	// The names of queues and servers, two counters of tasks, and what a budget might have.
	if keys := b.redis.Keys(t.Context(), "*").Val(); len(keys) > 8 {
		t.Errorf("%d keys are left: %v", len(keys), keys)
	}
}

// What somebody repeats by hand, in Asynqmon or in Redis, runs nothing twice.
//
//callq:guarantee 2
func TestRepeatedByHand(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	release := make(chan struct{})
	b := newBench(t, map[string]tasks.Handler{"count": func(context.Context, *tasks.Call) error {
		ran.Add(1)
		<-release
		return nil
	}})
	inspector, queue := asynq.NewInspectorFromRedisClient(b.redis), b.broker().Queue(b.workerPool())
	key := func(part string) string { return "asynq:{" + queue + "}:" + part }
	id := b.insert("count")
	b.await(`SELECT started_at IS NOT NULL FROM callq.call_open WHERE call_id = $1`, id)
	refs := []handoff.Ref{{CallID: id, Attempt: 1}}

	send := func(name string) {
		t.Helper()
		m := handoff.Message{Pool: b.workerPool(), ID: name, Task: "count", Attempts: refs}
		if err := b.broker().Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	taken := func(name string) {
		t.Helper()
		b.eventually("task "+name+" is taken", func() bool {
			_, err := inspector.GetTaskInfo(queue, name)
			return errors.Is(err, asynq.ErrTaskNotFound)
		})
	}
	// Archived, and run from there.
	if err := inspector.PauseQueue(queue); err != nil {
		t.Fatal(err)
	}
	send("archived")
	if err := inspector.ArchiveTask(queue, "archived"); err != nil {
		t.Fatal(err)
	}
	if err := inspector.RunTask(queue, "archived"); err != nil {
		t.Fatal(err)
	}
	if err := inspector.UnpauseQueue(queue); err != nil {
		t.Fatal(err)
	}
	taken("archived")
	// The same id again, once it is gone, and while the call runs and when it is done.
	for range 2 {
		send("again")
		taken("again")
	}
	// An id alone, whose task is gone, and an attempt of another number.
	if err := b.redis.LPush(t.Context(), key("pending"), "again").Err(); err != nil {
		t.Fatal(err)
	}
	b.eventually("the id is taken", func() bool { return b.redis.LLen(t.Context(), key("pending")).Val() == 0 })
	refs[0].Attempt = 2
	send("another attempt")
	taken("another attempt")
	close(release)
	b.ended(id, callqueue.StatusDone)
	refs[0].Attempt = 1
	send("late")
	taken("late")
	b.drain()
	if n := ran.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
	b.await(`SELECT count(*) = 1 AND bool_and(outcome = 'done') FROM call_attempts WHERE call_id = $1`, id)
}

func (b *bench) eventually(what string, is func() bool) {
	b.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !is(); <-tick.C {
		if time.Now().After(deadline) {
			b.t.Fatalf("not within a minute: %s", what)
		}
	}
}
