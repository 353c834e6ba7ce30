package dispatcher_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/policy"
)

// joined is a process of its own that starts with rules and lives.
func (s *system) joined(r policy.Policy) *dispatcher.Dispatcher {
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
		s.t.Error(err)
	}
}

func (s *system) poll(d *dispatcher.Dispatcher) {
	s.t.Helper()
	if err := d.Poll(context.Background()); err != nil {
		s.t.Error(err)
	}
}

// rate fails the test unless limit api is so in force.
func (s *system) rate(units int64, when string) {
	s.t.Helper()
	if got := one[int64](s, `SELECT rate FROM callq.call_limits WHERE name = 'api'`); got != units {
		s.t.Errorf("%s %d units are in force, want %d", when, got, units)
	}
}

// others fails the test unless so many live dispatchers have another file than what is in force, as each of these says.
func (s *system) others(want int, all ...*dispatcher.Dispatcher) {
	s.t.Helper()
	for i, d := range slices.Concat(all, all) { // once so that none is late
		if others, err := d.Heartbeat(s.t.Context()); err != nil || i >= len(all) && len(others) != want {
			s.t.Errorf("another file have %q (%v), want %d", others, err, want)
		}
	}
}

// inForce is all that is in force, its versions and its audit.
func (s *system) inForce() string {
	s.t.Helper()
	return one[string](s, `SELECT (SELECT json_agg(l ORDER BY name) FROM callq.call_limits l)::text || (SELECT json_agg(q ORDER BY name) FROM callq.call_queues q)
		|| (SELECT json_agg(c ORDER BY limit_name, version) FROM callq.call_limit_versions c) || (SELECT json_agg(a ORDER BY id) FROM callq.call_audit a)
		|| (SELECT json_agg(p ORDER BY number) FROM callq.call_policies p)`)
}

func hourly(units int64) policy.Policy { return rules(sliding("api", units, time.Hour)) }

// Of processes that differ what was applied last holds, at once, and what was claimed under the former is recalled.
// All of them say that they differ.
//
//callq:guarantee 7
func TestLastAppliedHolds(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.calls("default", 50)
	first := s.joined(hourly(10))
	s.tick(first)
	s.start(time.Hour, 1, 2, 3, 4)
	s.others(0, first)
	second := s.joined(hourly(6))
	s.rate(6, "beside the former")
	s.want(`SELECT count(*) = 4 AND count(started_at) = 4 FROM callq.call_open`)
	s.others(1, first, second)
	s.tick(first)
	s.want(`SELECT count(*) = 6 FROM callq.call_open`)

	third := s.joined(hourly(12))
	s.tick(third)
	s.want(`SELECT count(*) = 12 FROM callq.call_open`) // nothing was recalled for it
	s.others(2, first, second, third)
	first.Leave(t.Context())
	third.Leave(t.Context())
	s.others(1, second)
	s.tick(second)
	s.rate(12, "though nobody is left who has it")
	s.want(`SELECT array_agg(rate ORDER BY version) = '{10,6,12}' FROM callq.call_limit_versions`)
	s.verify()
}

// A process that starts with what has been replaced turns nothing back, and says so, until somebody says otherwise.
//
//callq:guarantee 7
func TestRestartTurnsNothingBack(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var said log
	s.log = slog.New(slog.NewTextHandler(&said, nil))
	s.joined(hourly(10))
	newer := s.joined(hourly(6))
	s.tick(newer) // opens the limit
	before := s.inForce()
	again := s.joined(hourly(10))
	s.turn(s.another(hourly(10)))
	if after := s.inForce(); after != before {
		t.Errorf("in force was\n%s\nand is\n%s", before, after)
	}
	if !said.has("a newer configuration has replaced this one") || again.Ready() != nil {
		t.Errorf("ready: %v; it said\n%s", again.Ready(), &said.text)
	}
	s.others(2, newer, again)

	s.apply(hourly(10))
	s.rate(10, "with --apply")
	s.others(1, newer, again)
	s.joined(hourly(6))
	s.rate(10, "after a restart with what --apply has replaced")
	s.replace(newer, hourly(6))
	s.rate(6, "reloaded")
	s.others(2, newer, again)
	s.publish(hourly(10))
	s.rate(10, "with config apply")
	s.joined(hourly(7))
	s.rate(7, "with a file never seen")
	s.want(`SELECT count(*) = 3 FROM callq.call_policies`)
	s.want(`SELECT array_agg(rate ORDER BY version) = '{10,6,10,6,10,7}' FROM callq.call_limit_versions`)
}

// A start without a limit, as where the file was not found, does not take away those in force.
//
//callq:guarantee 7
func TestStartWithoutLimitsTakesNoneAway(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var said log
	s.log = slog.New(slog.NewTextHandler(&said, nil))
	s.joined(hourly(10))
	none := hourly(10)
	none.Limits, none.Queues[0].Limits = nil, nil
	if d := s.joined(none); d.Ready() != nil || !said.has("would remove those in force") {
		t.Errorf("ready: %v; it said\n%s", d.Ready(), &said.text)
	}
	s.want(`SELECT rate = 10 AND queues = '{default}' FROM callq.call_limits`)
	s.apply(none)
	s.want(`SELECT queues = '{}' FROM callq.call_limits`)
}

// apply is the start of a process with --apply.
func (s *system) apply(r policy.Policy) {
	s.t.Helper()
	d := s.dispatcher(r, func(c *dispatcher.Config) { c.Apply = true })
	if err := d.Join(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	d.Leave(s.t.Context())
}

// Rules that are in force change nothing, and wait for no lock, whoever starts with them or applies them, and in whatever order
// they stand.
func TestSameRulesChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.calls("default", 50)
	api, day, unused := sliding("api", 10, time.Hour), sliding("day", 100, 24*time.Hour), sliding("unused", 1, time.Second)
	api.Slack = time.Second + 1 // finer than Postgres keeps
	r, same := rules(api, day), rules(day, api)
	r.Limits, same.Limits = append(r.Limits, unused), append(same.Limits, unused)
	r.Queues[0].Timeout, same.Queues[0].Timeout = time.Minute+1, time.Minute+1
	if changes := s.publish(r); len(changes) != 4 {
		t.Errorf("changes %q, want a queue and three limits", changes)
	}
	first := s.joined(r)
	s.tick(first)
	before := s.inForce()
	second := s.joined(same)
	s.turn(s.another(same))
	s.apply(same)
	s.replace(first, same)
	claim := s.hold(`SELECT FROM callq.call_queues FOR SHARE`, `SELECT FROM callq.call_limits FOR NO KEY UPDATE`, `SELECT FROM callq.call_locks WHERE name = 'capacity' FOR UPDATE`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if changes, err := policy.Apply(ctx, s.pool, same, "tester"); err != nil || len(changes) > 0 {
		t.Errorf("applied again: %q, %v, want nothing, without a lock", changes, err)
	}
	s.release(claim)
	s.tick(second)
	if after := s.inForce(); after != before {
		t.Errorf("in force was\n%s\nand is\n%s", before, after)
	}
	s.others(0, first, second)
	s.want(`SELECT count(*) = 10 AND max(attempt) = 1 FROM callq.call_open`)
}

// Who changed what, and when, is in the audit; whose policy is in force, beside it.
func TestPoliciesAreAudited(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.joined(hourly(10))
	s.publish(hourly(6))
	s.publish(hourly(6))
	s.want(`SELECT array_agg(what || ' ' || name ORDER BY id) = '{queue default,limit api,limit api}'
		AND array_agg(by = 'publisher' ORDER BY id) = '{f,f,t}'
		AND (array_agg(change ORDER BY id))[3] LIKE '6 per 1h, %' AND max(at) < clock_timestamp() FROM callq.call_audit`)
	inForce, err := policy.Effective(t.Context(), s.pool)
	if err != nil || inForce == nil || inForce.By != "publisher" || time.Since(inForce.At) > time.Hour {
		t.Errorf("in force is %+v, %v", inForce, err)
	}
}

// A dispatcher that was killed lives no more once it has missed its beats, and its row goes. One that only seemed to
// be dead is there again at its next beat.
func TestDispatcherKilled(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	killed, other := s.joined(hourly(10)), s.joined(hourly(6))
	for ago, others := range map[string]int{"5 s": 1, "7 s": 0} {
		s.exec(`UPDATE callq.call_dispatchers SET heartbeat_at = clock_timestamp() - $2::interval WHERE id = $1`, killed.ID(), ago)
		s.others(others, other)
	}
	for _, ago := range []string{"2 minutes", "-1 h"} { // the clock was set back
		s.others(1, killed)
		s.exec(`UPDATE callq.call_dispatchers SET heartbeat_at = clock_timestamp() - $2::interval WHERE id = $1`, killed.ID(), ago)
		s.tick(s.another(policy.Policy{}))
		s.want(`SELECT array_agg(id) = ARRAY[$1] FROM callq.call_dispatchers`, other.ID())
	}
	s.rate(6, "whoever is dead")
}

// A call that costs more than the limit can ever have fails. One that the configuration lets through waits while an
// operator has set a lower rate.
func TestDearCallFails(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	by := func(units int64) policy.Policy { return rules(byCost("api", units, time.Hour)) }
	d := s.joined(by(10))
	s.set(5, time.Hour)
	s.exec(`INSERT INTO call_queue (cost) VALUES (11), (8)`)
	s.tick(d)
	s.want(`SELECT array_agg(status ORDER BY id) = '{failed,new}' FROM call_queue`)
	s.joined(by(7))                                  // what an operator has set is lower still
	s.exec(`UPDATE callq.call_inbox SET at = now()`) // it was set aside
	s.tick(d)
	s.want(`SELECT array_agg(status ORDER BY id) = '{failed,failed}' FROM call_queue`)

	s.set(20, time.Hour)
	s.exec(`INSERT INTO call_queue (cost) VALUES (8)`)
	s.tick(d)
	s.want(`SELECT status = 'dispatched' FROM call_queue WHERE id = 3`)
}

// As processes run: what the last applied holds also after its end, and the log says that they differ.
func TestDispatchersRun(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var said log
	s.log = slog.New(slog.NewTextHandler(&said, nil))
	s.run(s.another(hourly(10)).Run)
	const inForce = `SELECT count(*) = 1 FROM callq.call_limits WHERE rate = $1 AND complete_since IS NOT NULL`
	s.eventually(inForce, 10)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	newer := s.another(hourly(6))
	go func() { ended <- newer.Run(ctx) }()
	s.eventually(inForce, 6)
	s.says(&said, "dispatchers have another configuration than the one in force")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.want(`SELECT count(*) = 1 FROM callq.call_dispatchers`)
	s.want(inForce, 6)
}

// says waits until the log does.
func (s *system) says(said *log, words string) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !said.has(words); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("the log does not say %q", words)
		}
	}
}

// The process that came last says how much call_data enqueue_call takes.
func TestMaxDataIsNoted(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for _, most := range []int64{1 << 20, 1 << 10} {
		d := s.dispatcher(hourly(1), func(c *dispatcher.Config) { c.MaxData = most })
		if err := d.Join(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.want(`SELECT position = $1 FROM callq.call_meta WHERE name = 'max_data'`, most)
	}
}
