package tasks_test

import (
	"context"
	"errors"
	"testing"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/tasks"
)

// A unique key is free again once its call has ended, in whatever way, and not before.
func TestUniqueKeyUntilTheEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]tasks.Handler{
		"nil":       func(context.Context, *tasks.Call) error { return nil },
		"error":     func(context.Context, *tasks.Call) error { return errors.New("busy") },
		"permanent": func(context.Context, *tasks.Call) error { return tasks.Permanent(errors.New("gone")) },
		"later":     func(context.Context, *tasks.Call) error { return tasks.RetryAfter(1<<40, errors.New("busy")) },
		"snooze":    func(context.Context, *tasks.Call) error { return tasks.Snooze(1 << 40) },
	})
	cases := []struct {
		task   string
		cancel bool // once it waits again
		status callqueue.Status
	}{
		{"nil", false, callqueue.StatusDone},
		{"error", false, callqueue.StatusFailed},
		{"permanent", false, callqueue.StatusFailed},
		{"later", false, callqueue.StatusError},
		{"snooze", false, callqueue.StatusNew},
		{"later", true, callqueue.StatusCancelled},
		{"snooze", true, callqueue.StatusCancelled},
	}
	for _, c := range cases {
		t.Run(c.task, func(t *testing.T) {
			call := callqueue.Call{Task: c.task, UniqueKey: c.task}
			id, err := b.client.Insert(t.Context(), call)
			if c.cancel && errors.Is(err, callqueue.ErrDuplicate) { // the one of before still waits
				_, err = b.client.Cancel(t.Context(), id)
			}
			if err != nil {
				t.Fatal(err)
			}
			b.await(`SELECT status = $2 AND attempts > 0 FROM call_queue WHERE id = $1`, id, string(c.status))
			again, err := b.client.Insert(t.Context(), call)
			if c.status.Final() && (err != nil || again == id) {
				t.Errorf("after the end: got %d, %v; want a new call", again, err)
			}
			if !c.status.Final() && (!errors.Is(err, callqueue.ErrDuplicate) || again != id) {
				t.Errorf("before the end: got %d, %v; want ErrDuplicate of %d", again, err, id)
			}
		})
	}

	var expired int64 // after it was handed over
	if err := b.pool.QueryRow(t.Context(), claimByHandSQL).Scan(&expired); err != nil {
		t.Fatal(err)
	}
	if _, err := b.pool.Exec(t.Context(), `UPDATE call_queue SET expires_at = now(), unique_key = 'u' WHERE id = $1`, expired); err != nil {
		t.Fatal(err)
	}
	b.send("count", []handoff.Ref{{CallID: expired, Attempt: 1}})
	b.await(`SELECT status = 'failed' AND unique_key IS NULL FROM call_queue WHERE id = $1`, expired)
}
