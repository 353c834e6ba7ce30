package backlog_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// A call without a beginning, which no time.Time holds, is the first of all, and keeps no other waiting.
func TestDueSinceEver(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queue (queue, run_at) VALUES ('q', '-infinity')`)
	q.drain()
	q.exec(`INSERT INTO call_queue (queue, run_at) VALUES ('q', now()), ('q', '-infinity')`)
	q.drain()
	q.sound()
	if got, want := q.claim(9), []int64{1, 3, 2}; !slices.Equal(got, want) {
		t.Errorf("claimed %v, want %v", got, want)
	}
}

// However many flows one key has, waking them all comes to an end, and passes over none, though claims park again what it woke.
func TestWakeAllComesToAnEnd(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]string{"of one key": `'k'`, "of some": `'k' || i % 2`, "of many": `'k' || i`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			q.exec(`INSERT INTO call_queue (queue, key, task) SELECT 'q', ` + keys + `, 't' || i FROM generate_series(1, 2500) i`)
			q.drain()
			q.exec(`UPDATE callq.call_flows SET wake_at = now() + interval '2 h'`)
			q.tx(func(ctx context.Context, tx pgx.Tx) error { return backlog.WakeAll(ctx, tx, []string{"q"}) })
			for range 5 { // slices
				q.drainOnce(time.Now().Add(time.Minute))
				q.exec(`UPDATE callq.call_flows SET wake_at = now() + interval '1 h' WHERE wake_at IS NULL`)
			}
			if n := q.value(`SELECT count(*) FROM callq.call_inbox`); n > 0 {
				t.Errorf("%d inbox are left", n)
			}
			if n := q.value(`SELECT count(*) FROM callq.call_flows WHERE wake_at > now() + interval '90 min'`); n > 0 {
				t.Errorf("%d flows were passed over", n)
			}
		})
	}
}

// A key's flows wake together, though they were parked at different times: a call of a larger priority must
// not pass one that waits for units.
func TestKeyWakesAsAWhole(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queue (queue, key, priority) VALUES ('q', 'k', 3), ('q', 'k', 5), ('q', 'other', 5)`)
	q.drain()
	q.exec(`UPDATE callq.call_flows SET wake_at = now() + CASE WHEN key = 'k' AND priority = 5 THEN interval '1 min' ELSE interval '2 h' END`)
	q.drain()
	if got, want := q.claim(1), []int64{1, 2}; !slices.Equal(got, want) {
		t.Errorf("claimed %v, want %v", got, want)
	}
}

// Behind many calls that have ended, the next that waits is found by a few claims, though each asks for one call; and
// none that waits is passed.
func TestEndedCallsAreSkipped(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"of one key": `'k'`, "of some": `'k' || id % 3`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			q.exec(`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 10000)`)
			q.exec(`UPDATE call_queue SET key = ` + key)
			q.drain()
			q.exec(`UPDATE call_queue SET status = CASE id % 2 WHEN 0 THEN 'cancelled' ELSE 'done' END WHERE id NOT IN (300, 6000, 9001)`)
			q.exec(`DELETE FROM call_queue WHERE id BETWEEN 7000 AND 8000`)
			var claimed []int64
			for range 9 {
				claimed = append(claimed, q.claim(1)...)
				q.sound()
			}
			if want := []int64{300, 6000, 9001}; !slices.Equal(slices.Sorted(slices.Values(claimed)), want) {
				t.Errorf("nine claims took %v, want %v", claimed, want)
			}
		})
	}
}

// A call that waits again while claims skip it comes out all the same, and what is locked meanwhile too.
func TestSkippedCallsWaitAgain(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queue (queue, key) SELECT 'q', 'k' FROM generate_series(1, 30000)`)
	q.drain()
	q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id % 1000 > 0`)
	var all errgroup.Group
	for from := range 4 {
		all.Go(func() error {
			for id := 1 + from; id < 30_000; id += 97 {
				if _, err := q.pool.Exec(t.Context(), `UPDATE call_queue SET status = 'new' WHERE id = $1 AND status = 'cancelled'`, id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 60 {
		q.claim(1)
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	q.sound()
	q.drain()
	q.claimAll()
	if n := q.value(`SELECT count(*) FROM call_queue WHERE status = 'new'`); n > 0 {
		t.Errorf("%d calls never came out", n)
	}
}
