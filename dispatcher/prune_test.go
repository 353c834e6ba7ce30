package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/lines"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// backlog is a paused queue with n calls in line, each with a key of its own, of which those where ended have been
// cancelled.
func backlog(s *system, n int, ended string) dispatcher.Rules {
	s.t.Helper()
	r := rules(sliding("api", 100, time.Hour))
	s.once(r)
	if _, err := ledger.Pause(s.t.Context(), s.pool, ledger.Paused{What: "queue", Name: "default", Reason: "test", By: "test"}); err != nil {
		s.t.Fatal(err)
	}
	s.exec(`INSERT INTO call_queue (queue, key) SELECT 'default', 'k' || i FROM generate_series(1, $1) i`, n)
	for all := false; !all; {
		if err := pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
			taken, err := lines.Intake(s.t.Context(), tx, "default", time.Time{}, time.Now().Add(time.Hour))
			all = taken.All
			return err
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	s.want(`SELECT sum(calls) = $1 FROM call_line_totals`, n)
	s.exec(`UPDATE call_queue SET status = 'cancelled' WHERE ` + ended)
	return r
}

func (s *system) noneAstray() {
	s.t.Helper()
	if found, err := lines.FindAstray(s.t.Context(), s.pool, 0); err != nil || found != (lines.Astray{}) {
		s.t.Errorf("found %+v, %v", found, err)
	}
}

// What is cancelled while nothing can be claimed is soon said to wait no longer.
func TestTicksTakeEndedCallsOutOfLine(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	d := s.dispatcher(backlog(s, 20_000, `true`))
	ticks := 0
	for ; one[int64](s, `SELECT coalesce(sum(calls), 0) FROM call_line_totals`) > 0; ticks++ {
		if ticks == 100 {
			t.Fatal("100 ticks were not enough")
		}
		if err := d.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.want(`WITH ` + lines.WaitingSQL("true") + ` SELECT count(*) = 0 FROM waiting`)
	s.want(`SELECT (SELECT count(*) FROM call_lines) + (SELECT count(*) FROM call_waiting) + (SELECT count(*) FROM call_line_totals) = 0`)
	s.noneAstray()
}

// Nor are calls scheduled that were cancelled, long before they would be due.
func TestTicksTakeEndedCallsOutOfTheNews(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 100, time.Hour))
	s.once(r)
	s.exec(`INSERT INTO call_queue (key, run_at) SELECT 'k' || i, now() + i * interval '1 min' FROM generate_series(1, 20000) i`)
	s.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id > 100`)
	s.want(`SELECT sum(calls) = 20000 FROM call_news`)
	d := s.dispatcher(r)
	for ticks := 0; one[int64](s, `SELECT sum(calls) FROM call_news`) > 100; ticks++ {
		if ticks == 100 {
			t.Fatal("100 ticks were not enough")
		}
		s.tick(d)
	}
	s.want(`WITH ` + lines.WaitingSQL("true") + ` SELECT sum(calls) = 100 AND sum(due) = 0 FROM waiting`)
	s.noneAstray()
}

// Where most calls wait, lines stay as they are.
func TestLinesOfWaitingCallsAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	d := s.dispatcher(backlog(s, 12_000, `hashint8(id) % 10 = 0`))
	const linesSQL = `SELECT md5((SELECT string_agg(concat(ctid, xmin), ' ' ORDER BY ctid) FROM call_lines)
		|| (SELECT string_agg(concat(ctid, xmin), ' ' ORDER BY ctid) FROM call_waiting))`
	before := one[string](s, linesSQL)
	for range 5 {
		if err := d.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.want(linesSQL+` = $1`, before)
}

// A pass takes its time, goes on where it was, and through the whole queue, though soon most of it waits.
func TestPruneGoesOn(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const calls, aTick = 12_000, 2 * 2000 // two steps, by the clock below
	r := backlog(s, calls, `hashint8(id) % 5 <> 0`)
	waiting := one[int64](s, `SELECT count(*) FROM call_queue WHERE status = 'new'`)
	now := time.Now()
	d, err := dispatcher.New(dispatcher.Config{Pool: s.pool, Redis: s.redis, Rules: r, Now: func() time.Time {
		now = now.Add(100 * time.Millisecond)
		return now
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range calls/aTick + 1 {
		left := one[int64](s, `SELECT sum(calls) FROM call_line_totals`)
		n, err := d.Patient().Prune(t.Context())
		if err != nil || n > aTick || n == 0 && i < calls/aTick {
			t.Errorf("%d taken out, %v", n, err)
		}
		s.want(`SELECT sum(calls) = $1 FROM call_line_totals`, left-int64(n))
		s.noneAstray()
	}
	s.want(`SELECT sum(calls) = $1 FROM call_line_totals`, waiting)
}

// Who holds the queue's row keeps nobody waiting, and what was not looked at is by the next tick.
func TestPrunePassesOverLockedQueues(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	d := s.dispatcher(backlog(s, 12_000, `true`))
	if err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT FROM call_queues FOR NO KEY UPDATE`); err != nil {
			return err
		}
		if n, err := d.Prune(t.Context()); err != nil || n != 0 {
			t.Errorf("took out %d, %v", n, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if _, err := d.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.want(`SELECT count(*) = 0 FROM call_line_totals`)
}

// A whole sweep goes to the end, and any number may at once, beside claims.
func TestSweepAllPrunes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := backlog(s, 20_000, `hashint8(id) % 5 <> 0`)
	s.alive(1000)
	if was, err := ledger.Resume(t.Context(), s.pool, "queue", "default", "", "test"); err != nil || !was {
		t.Fatal(was, err)
	}
	var all errgroup.Group
	for range 4 {
		d := s.another(r)
		all.Go(func() error { return d.Tick(context.WithoutCancel(t.Context())) })
		sweeper := s.another(dispatcher.Rules{})
		all.Go(func() error {
			_, err := sweeper.SweepAll(context.WithoutCancel(t.Context()))
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	s.noneAstray()
	s.want(`SELECT sum(calls) = (SELECT count(*) FROM call_queue WHERE status = 'new') FROM call_line_totals`)
	s.want(`SELECT count(*) = 100 FROM call_open`)
}
