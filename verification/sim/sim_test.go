package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

var (
	seedFlag    = flag.Uint64("seed", 0, "the one seed to run")
	seedsFlag   = flag.Int("seeds", 6, "how many seeds to run")
	fromFlag    = flag.Uint64("from", 1, "the first of them")
	roughFlag   = flag.Bool("rough", false, "the mutants' small worlds full of faults, with no rule turned off")
	mutantsFlag = flag.Bool("mutants", false, "prove that what is turned off is noticed")
)

// TestSimulation runs seeds, two side by side. With -seed and -v it prints what happened.
//
//callq:guarantee 1 2 3 4 5 6 7 11
func TestSimulation(t *testing.T) {
	seeds := make([]uint64, *seedsFlag)
	for i := range seeds {
		seeds[i] = *fromFlag + uint64(i)
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	var next, arrived, virtual atomic.Int64
	var failed sync.Map
	var lanes sync.WaitGroup
	for range min(2, len(seeds)) {
		l := newLane(t)
		lanes.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(seeds); i = next.Add(1) - 1 {
				begun := time.Now()
				w, err := simulate(t.Context(), l, seeds[i], mutant{rough: *roughFlag})
				if err != nil {
					t.Error(err)
					failed.Store(seeds[i], true)
				}
				arrived.Add(int64(len(w.api.arrivals)))
				virtual.Add(int64(w.now))
				if testing.Verbose() {
					t.Logf("seed %d: %d calls, %d requests, %d turns, %s of virtual time in %s, digest %x", w.seed, w.inserted,
						len(w.api.arrivals), w.turns, w.now.Round(time.Second), time.Since(begun).Round(time.Millisecond), w.record.digest.Sum64())
				}
				if *seedFlag != 0 && testing.Verbose() {
					for _, line := range w.record.lines {
						t.Log(line)
					}
				}
			}
		})
	}
	lanes.Wait()
	t.Logf("%d seeds, %d requests, %s of virtual time", len(seeds), arrived.Load(), time.Duration(virtual.Load()).Round(time.Hour))
	failed.Range(func(seed, _ any) bool {
		t.Logf("seed %d failed", seed) // last, for a reader of the end
		return true
	})
}

// TestReplay: a seed always gives the same events.
func TestReplay(t *testing.T) {
	l := newLane(t)
	for seed := uint64(1); seed <= 2; seed++ {
		first, err := simulate(t.Context(), l, seed, mutant{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := simulate(t.Context(), l, seed, mutant{})
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range first.record.lines {
			if i == len(again.record.lines) || again.record.lines[i] != line {
				t.Fatalf("seed %d: event %d is another the second time: %s", seed, i, line)
			}
		}
	}
}

// simulate runs one world to its end.
func simulate(ctx context.Context, l *lane, seed uint64, m mutant) (w *world, err error) {
	w = newWorld(ctx, l, seed, m)
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *failure:
			err = p
		default:
			err = fmt.Errorf("seed %d: panic: %v\n%s", seed, p, debug.Stack())
		}
	}()
	l.epoch = "1-1"
	if err := l.clear(ctx); err != nil {
		return w, err
	}
	if m.sql != "" {
		if _, err := l.workers.Exec(ctx, m.sql); err != nil {
			return w, err
		}
		defer func() {
			_, undone := l.workers.Exec(context.WithoutCancel(ctx), m.undo)
			err = errors.Join(err, undone)
		}()
	}
	w.offset = w.between(-time.Hour, time.Hour)
	w.drift = (w.rng.Float64() - 0.5) / 1000
	l.setClock(w.postgres())
	w.pace = pick(w, prompt, late, mixed)
	set := w.set
	set.rules = policy.Policy{} // said apart, for it has pointers
	w.note(0, "", "%+v, %+v", set, w.set.rules)
	w.api.publish()
	w.startWorkers()
	w.startDispatchers()
	w.planProducers()
	w.planFaults()
	w.run(w.drained)
	w.verify()
	w.settled()
	return w, nil
}

// settled checks that nothing counts for good that nobody is in doubt about any more.
func (w *world) settled() {
	rows, err := w.lane.workers.Query(w.ctx, `SELECT limit_name, key, used FROM callq.call_usage WHERE bucket = '2200-01-01 00:00:00Z' AND used <> 0`)
	w.must(err)
	var name, key string
	var used int64
	_, err = pgx.ForEachRow(rows, []any{&name, &key, &used}, func() error {
		w.fail("what was in doubt is settled", 0, name, "%d units of key %q count for good", used, key)
		return nil
	})
	w.must(err)
}

// drained says whether the world has healed and nothing is left to do. It asks once in a while.
func (w *world) drained() bool {
	if !w.healing || w.now < w.asked {
		return false
	}
	w.asked = w.now + w.set.tick
	var left int
	w.must(w.lane.workers.QueryRow(w.ctx, leftSQL).Scan(&left))
	if left == 0 {
		return true
	}
	if w.now > w.patient() {
		id, why := w.stuck()
		w.fail("everything drains", id, "", "%d calls are left, %s after the world healed\n%s", left, w.now-w.set.span, why)
	}
	return false
}

const leftSQL = `
SELECT (SELECT count(*) FROM call_queue WHERE status NOT IN ('done', 'failed', 'cancelled')) + (SELECT count(*) FROM callq.call_open)
    + (SELECT count(*) FROM call_attempts WHERE arrived_by = '2200-01-01 00:00:00Z')`

// stuck is the first of them, and what there is to know.
func (w *world) stuck() (id int64, why string) {
	w.must(w.lane.workers.QueryRow(w.ctx, stuckSQL).Scan(&id, &why))
	return id, why
}

const stuckSQL = `
WITH stuck AS (
    SELECT coalesce((SELECT min(id) FROM call_queue WHERE status NOT IN ('done', 'failed', 'cancelled')),
        (SELECT min(call_id) FROM callq.call_open), 0) AS id
)
SELECT id, concat_ws(E'\\n', 'now: ' || clock_timestamp(),
    (SELECT 'open calls: ' || count(*) || ' started ' || count(started_at) FROM callq.call_open), (SELECT 'usage ' || coalesce(sum(used)::text,'none') || ' ' || coalesce(max(bucket)::text,'') FROM callq.call_usage),
    (SELECT 'call: ' || to_jsonb(q)::text FROM call_queue q WHERE q.id = stuck.id),
    (SELECT 'open: ' || to_jsonb(o)::text FROM callq.call_open o WHERE o.call_id = stuck.id),
    (SELECT 'limits: ' || jsonb_agg(to_jsonb(l))::text FROM callq.call_limits l),
    (SELECT 'workers: ' || jsonb_agg(to_jsonb(k))::text FROM callq.call_workers k))
FROM stuck`

// patient is when at the latest everything must have drained: as if the calls went through one limit
// at a time, one after the other, each as often as it may be tried, at half the rate.
func (w *world) patient() time.Duration {
	patience := 10*time.Minute + 10*w.set.longest
	if w.set.queues { // as if each attempt were in doubt, and none proven
		patience += time.Duration(min(w.inserted, 200)) * time.Minute
	}
	for _, l := range w.set.rules.Limits {
		windows := 2 * time.Duration(3*len(w.calls)) / time.Duration(l.Rate.Units)
		patience += 2 * (windows + 1) * max(l.Rate.Window, 10*time.Second)
	}
	for _, q := range w.set.rules.Queues {
		patience += 6 * (q.BackoffMax + q.Timeout)
	}
	// A step forward widens windows by as much, for as long; one back makes old deadlines late.
	return w.set.span + patience + 4*w.stepped
}
