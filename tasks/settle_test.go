package tasks_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/tasks"
)

func TestSettleRefuses(t *testing.T) {
	t.Parallel()
	var call tasks.Call
	for _, n := range []int64{-1, math.MinInt64, 1e12 + 1, math.MaxInt64} {
		if err := call.Settle(n); err == nil {
			t.Errorf("Settle(%d) is no error", n)
		}
	}
	for _, n := range []int64{0, 1, 1e12} {
		if err := call.Settle(n); err != nil {
			t.Errorf("Settle(%d): %v", n, err)
		}
	}
}

// What the handler settled last is recorded, however it ends.
func TestSettle(t *testing.T) {
	t.Parallel()
	settles := func(err error, units ...int64) tasks.Handler {
		return func(_ context.Context, call *tasks.Call) error {
			for _, n := range units {
				_ = call.Settle(n)
			}
			if err == nil && len(units) > 3 {
				panic("boom")
			}
			return err
		}
	}
	b := newBench(t, map[string]tasks.Handler{
		"last counts":   settles(nil, 900, 20),
		"0":             settles(nil, 0),
		"more":          settles(nil, 700),
		"refused":       settles(nil, 30, -1),
		"nothing":       settles(nil),
		"an error":      settles(errors.New("late"), 20),
		"permanent":     settles(tasks.Permanent(errors.New("no")), 20),
		"snoozed":       settles(tasks.Snooze(time.Hour), 20),
		"a panic":       settles(nil, 1, 2, 3, 20),
		"was not sent":  settles(tasks.NotSent(errors.New("no route")), 20),
		"not permitted": settles(tasks.RetryAfter(time.Hour, errors.New("busy")), 20),
	})
	for name, want := range map[string]int64{
		"last counts": 20, "0": 0, "more": 700, "refused": 30, "nothing": -1, "an error": 20, "permanent": 20, "snoozed": 20, "a panic": 20,
		"was not sent": -1, "not permitted": 20,
	} {
		t.Run(name, func(t *testing.T) {
			id := b.insertCall(callqueue.Call{Task: name, Cost: 500})
			b.await(`SELECT coalesce(settled, -1) = $2 AND cost = 500 FROM call_attempts WHERE call_id = $1 AND attempt = 1`, id, want)
		})
	}
	b.drain()
	b.verify()
}
