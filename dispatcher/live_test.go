package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
)

// joined is a process of its own that publishes rules and lives.
func (s *system) joined(r dispatcher.Rules) *dispatcher.Dispatcher {
	s.t.Helper()
	d := s.another(r)
	if err := d.Join(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *system) tick(d *dispatcher.Dispatcher) {
	s.t.Helper()
	if err := d.Tick(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// silent says that a process's last beat was so long ago, steady that another has missed none since.
func (s *system) silent(d *dispatcher.Dispatcher, ago string) {
	s.t.Helper()
	s.exec(`UPDATE call_publishers SET beat_at = clock_timestamp() - $2::interval WHERE id = $1`, d.PublisherID(), ago)
}

func (s *system) steady(d *dispatcher.Dispatcher, ago string) {
	s.t.Helper()
	s.exec(`UPDATE call_publishers SET steady_since = clock_timestamp() - $2::interval WHERE id = $1`, d.PublisherID(), ago)
}

// rate fails the test unless limit api is so in force.
func (s *system) rate(units int64, when string) {
	s.t.Helper()
	if got := one[int64](s, `SELECT rate FROM call_limits WHERE name = 'api'`); got != units {
		s.t.Errorf("%s %d units are in force, want %d", when, got, units)
	}
}

// inForce is all that is in force, its versions and its audit.
func (s *system) inForce() string {
	s.t.Helper()
	return one[string](s, `SELECT (SELECT json_agg(l ORDER BY name) FROM call_limits l)::text || (SELECT json_agg(q ORDER BY name) FROM call_queues q)
		|| (SELECT json_agg(c ORDER BY limit_name, version) FROM call_limit_changes c) || (SELECT json_agg(a ORDER BY id) FROM call_audit a)`)
}

func hourly(units int64) dispatcher.Rules { return rules(sliding("api", units, time.Hour)) }

// The stricter holds at once, whoever came first, and what was claimed under the wider is recalled.
func TestStricterHoldsWhileItLives(t *testing.T) {
	t.Parallel()
	parallel(t, "the stricter comes later", func(t *testing.T, s *system) {
		s.alive(100)
		s.calls("default", 50)
		wide := s.joined(hourly(10))
		s.tick(wide)
		s.start(time.Hour, 1, 2, 3, 4)
		strict := s.joined(hourly(6))
		s.rate(6, "beside the stricter")
		s.want(`SELECT count(*) = 4 AND count(started_at) = 4 FROM call_open`)
		s.tick(wide)
		s.want(`SELECT count(*) = 6 FROM call_open`)
		s.rate(6, "after a tick of the wider")

		strict.Leave(t.Context())
		s.rate(6, "before anybody looked")
		s.tick(wide)
		s.rate(10, "without the stricter")
		s.want(`SELECT count(*) = 10 FROM call_open`) // nothing was recalled for it
		s.want(`SELECT array_agg(rate ORDER BY version) = '{10,6,10}' FROM call_limit_changes`)
		s.want(`SELECT count(*) = 1 FROM call_publishers`)
		s.verify()
	})
	parallel(t, "the wider comes later", func(t *testing.T, s *system) {
		s.alive(100)
		s.calls("default", 50)
		strict := s.joined(hourly(6))
		s.tick(strict)
		before := s.inForce()
		wide := s.joined(hourly(10))
		s.tick(wide)
		if after := s.inForce(); after != before {
			t.Errorf("the wider changed\n%s\nto\n%s", before, after)
		}
		s.want(`SELECT count(*) = 6 FROM call_open`)
		wide.Leave(t.Context())
		s.tick(strict)
		if after := s.inForce(); after != before {
			t.Errorf("the wider's end changed\n%s\nto\n%s", before, after)
		}
		s.verify()
	})
	parallel(t, "nobody is left", func(t *testing.T, s *system) {
		wide, strict := s.joined(hourly(10)), s.joined(hourly(6))
		wide.Leave(t.Context())
		strict.Leave(t.Context())
		s.tick(s.another(dispatcher.Rules{}))
		s.rate(6, "after the last")
		s.want(`SELECT count(*) = 0 FROM call_publishers`)
		s.joined(hourly(9))
		s.rate(9, "after the next")
	})
}

// A process that was killed is taken out once another has missed its beats; one that only seemed to
// be dead publishes anew.
func TestPublisherKilled(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.still()
	wide, strict := s.joined(hourly(10)), s.joined(hourly(6))
	for _, step := range []struct {
		silent, steady string // for how long
		rate           int64
	}{
		{"5 s", "1 h", 6}, // it may yet beat
		{"7 s", "5 s", 6}, // nobody knows whether Postgres could be reached
		{"7 s", "7 s", 10},
	} {
		s.silent(strict, step.silent)
		s.steady(wide, step.steady)
		s.tick(wide)
		s.rate(step.rate, "silent for "+step.silent+", missed for "+step.steady)
	}
	s.want(`SELECT count(*) = 1 FROM call_publishers`)
	if err := strict.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.rate(6, "once it beats")
	s.want(`SELECT count(*) = 2 FROM call_publishers`)
	s.want(`SELECT array_agg(rate ORDER BY version) = '{10,6,10,6}' FROM call_limit_changes`)

	// All were silent: Postgres was away. Whoever is back first does not take the others for dead.
	s.silent(wide, "20 s")
	s.silent(strict, "20 s")
	s.steady(wide, "1 h")
	s.steady(strict, "1 h")
	if err := wide.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.tick(wide)
	s.rate(6, "once Postgres is back")
	s.silent(strict, "61 s")
	s.steady(wide, "5 s")
	s.tick(wide)
	s.rate(6, "though it has been silent for a minute")
	s.publish(hourly(10))
	s.rate(10, "when another comes")
}

// Postgres's clock was set back: what died before that has beats to come, and is a witness for nobody.
func TestPublisherDiedBeforeTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.still()
	wide, strict, dead := s.joined(hourly(10)), s.joined(hourly(6)), s.joined(hourly(8))
	s.silent(dead, "-1 h")
	s.steady(dead, "1 h")
	s.silent(strict, "7 s") // Postgres was away, and this one is not back yet
	s.steady(wide, "5 s")
	s.tick(wide)
	s.rate(6, "beside one that nobody saw miss a beat")
	s.want(`SELECT count(*) = 3 FROM call_publishers`)

	// Nor does it live for an hour: those that do have beaten since.
	s.silent(strict, "0 s")
	s.silent(dead, "-5 s") // a clock that was slewed
	s.steady(wide, "7 s")
	s.tick(wide)
	s.want(`SELECT count(*) = 3 FROM call_publishers`)
	s.silent(dead, "-1 h")
	s.tick(wide)
	s.want(`SELECT count(*) = 2 FROM call_publishers`)
}

func TestSameRulesChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.calls("default", 50)
	first := s.joined(hourly(10))
	s.tick(first)
	before := s.inForce()
	second := s.joined(hourly(10))
	s.once(hourly(10))
	s.tick(second)
	first.Leave(t.Context())
	s.tick(second)
	if after := s.inForce(); after != before {
		t.Errorf("in force was\n%s\nand is\n%s", before, after)
	}
	s.want(`SELECT count(*) = 10 AND max(attempt) = 1 FROM call_open`)
	s.want(`SELECT count(*) = 1 FROM call_publishers`)
}

// What an operator sets stays, and what the live processes say is noted beside it.
func TestSetLimitBesideLiveProcesses(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	wide, strict := s.joined(hourly(10)), s.joined(hourly(6))
	reset := func() {
		t.Helper()
		if _, err := dispatcher.ResetLimit(t.Context(), s.pool, "api", "tester"); err != nil {
			t.Fatal(err)
		}
	}
	s.set(8, time.Hour)
	s.want(`SELECT rate = 8 AND config_rate = 6 FROM call_limits`)
	strict.Leave(t.Context())
	s.tick(wide)
	s.want(`SELECT rate = 8 AND config_rate = 10 FROM call_limits`)
	reset()
	s.rate(10, "reset")

	s.set(20, time.Hour)
	if err := strict.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT rate = 20 AND config_rate = 6 FROM call_limits`)
	reset()
	s.rate(6, "reset beside the stricter")
	strict.Leave(t.Context())
	s.tick(wide)
	s.want(`SELECT rate = 10 AND config_rate IS NULL FROM call_limits`)
}

// The rules of dispatch --once hold beside others while it runs, and after it where there are none.
func TestOncePublishes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.once(hourly(6))
	s.once(hourly(8))
	s.rate(8, "after the last")
	live := s.joined(hourly(10))
	s.rate(10, "beside nobody")
	s.once(hourly(6))
	s.rate(6, "before a tick")
	s.tick(live)
	s.rate(10, "once it is gone")
	s.once(hourly(12))
	s.tick(live)
	s.want(`SELECT array_agg(rate ORDER BY version) = '{6,8,10,6,10}' FROM call_limit_changes`)
}

// A rate and a concurrency of one name: who comes second is refused, and nothing changes.
func TestPublishersConflict(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	first := s.joined(hourly(10))
	before := s.inForce()
	atOnce := rules(dispatcher.LimitRule{Name: "api", Rate: limit.Rate{Units: 3}})
	second := s.another(atOnce)
	_, err := dispatcher.Publish(t.Context(), s.pool, atOnce)
	for what, err := range map[string]error{"Run": second.Run(t.Context()), "Once": second.OnceUnfrozen(t.Context()), "Publish": err} {
		conflict, ok := errors.AsType[*dispatcher.ConflictError](err)
		if !ok || conflict.Limit != "api" || conflict.Rate != [2]limit.Rate{{Units: 10, Window: time.Hour}, {Units: 3}} {
			t.Errorf("%s: %v, want a conflict", what, err)
		}
	}
	if second.Ready() == nil {
		t.Error("it was refused, and is ready")
	}
	if after := s.inForce(); after != before {
		t.Errorf("the refused changed\n%s\nto\n%s", before, after)
	}
	s.want(`SELECT count(*) = 1 FROM call_publishers`)
	first.Leave(t.Context())
	if err := second.Join(t.Context()); err != nil || second.Ready() != nil {
		t.Errorf("after the other's end: %v, %v", err, second.Ready())
	}
	s.want(`SELECT rate = 3 AND window_size = '0' FROM call_limits`)
}

// A queue uses what any process gives it; what one of them alone has stays while that one lives.
func TestPublishersOfQueues(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a, b := sliding("a", 10, time.Hour), sliding("b", 10, time.Hour)
	old := dispatcher.Rules{Limits: []dispatcher.LimitRule{a, b}, Queues: []dispatcher.QueueRule{queue("shared", "a"), queue("old", "b")}}
	new := dispatcher.Rules{Limits: []dispatcher.LimitRule{a, b}, Queues: []dispatcher.QueueRule{queue("shared", "b"), queue("new")}}
	new.Queues[0].MaxAttempts = 7
	first := s.joined(old)
	second := s.joined(new)
	const both = `SELECT string_agg(concat(name, limits, max_attempts), ' ' ORDER BY name) = 'new{}3 old{b}3 shared{a,b}7' FROM call_queues`
	s.want(both)
	s.want(`SELECT string_agg(concat(name, queues), ' ' ORDER BY name) = 'a{shared} b{old,shared}' FROM call_limits`)
	// It was frozen, and is not the newest for that.
	s.silent(first, "7 s")
	s.steady(second, "7 s")
	s.tick(second)
	s.want(`SELECT string_agg(concat(name, limits, max_attempts), ' ' ORDER BY name) = 'new{}3 shared{b}7' FROM call_queues`)
	if err := first.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want(both)
	second.Leave(t.Context())
	s.tick(first)
	s.want(`SELECT string_agg(concat(name, limits, max_attempts), ' ' ORDER BY name) = 'old{b}3 shared{a}3' FROM call_queues`)
}

// A call that one of the live processes would let through does not fail for the rule of another.
func TestDearCallWaitsWhileProcessesDiffer(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	by := func(units int64) dispatcher.Rules {
		r := hourly(units)
		r.Limits[0].CountCost = true
		return r
	}
	wide, strict := s.joined(by(10)), s.joined(by(5))
	s.exec(`INSERT INTO call_queue (cost) VALUES (11), (8)`)
	s.tick(strict)
	s.want(`SELECT array_agg(status ORDER BY id) = '{failed,new}' FROM call_queue`)
	strict.Leave(t.Context())
	s.tick(wide)
	s.want(`SELECT array_agg(status ORDER BY id) = '{failed,dispatched}' FROM call_queue`)

	s.exec(`INSERT INTO call_queue (queue, cost) VALUES ('default', 8)`)
	if err := strict.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	wide.Leave(t.Context())
	s.want(`SELECT rate = 5 AND most_cost = 10 FROM call_limits`)
	s.tick(strict)
	s.want(`SELECT bool_and(status = 'failed') FROM call_queue`)
	s.want(`SELECT rate = 5 AND most_cost = 5 FROM call_limits`)
	s.want(`SELECT max(version) = 4 FROM call_limit_changes`) // what a call may cost is no version
}

// As processes run: the stricter holds from its start to its end, and no longer than a tick.
func TestPublishersRun(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.run(s.another(hourly(10)).Run)
	const inForce = `SELECT count(*) = 1 FROM call_limits WHERE rate = $1 AND complete_since IS NOT NULL`
	s.eventually(inForce, 10)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	strict := s.another(hourly(6))
	go func() { ended <- strict.Run(ctx) }()
	s.eventually(inForce, 6)
	s.eventually(`SELECT count(*) = 2 FROM call_publishers WHERE beat_at > since`) // both beat
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.eventually(inForce, 10)
}

// The process that came last says how much call_data enqueue_call takes.
func TestMaxDataIsNoted(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for _, most := range []int64{1 << 20, 1 << 10} {
		d, err := dispatcher.New(dispatcher.Config{Pool: s.pool, Redis: s.redis, Rules: hourly(1), Logger: s.log, MaxData: most})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Join(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.want(`SELECT position = $1 FROM call_marks WHERE name = 'max_data'`, most)
	}
}
