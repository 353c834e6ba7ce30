package dispatcher_test

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/policy"
)

// open has the default queue open in these hours only.
func openIn(hours string) policy.Policy {
	r := rules()
	r.Queues[0].Hours = hours
	return r
}

// due inserts calls that are due by the clock that the test sets, in the order of their ids.
func (s *system) due(queue string, n int) {
	s.t.Helper()
	s.exec(`INSERT INTO call_queue (queue, run_at) SELECT $1, clock_timestamp() FROM generate_series(1, $2)`, queue, n)
}

// stage gives the test its own clock, by which claims also say until when to start.
func (s *system) stage() {
	s.t.Helper()
	s.settable()
	s.exec(`DROP TRIGGER patient ON callq.call_open`)
	s.alive(100)
}

// clockAt stops Postgres's clock, as settable gave it.
func (s *system) clockAt(at string) {
	s.t.Helper()
	s.clockIs(`timestamptz '` + at + `'`)
	s.exec(`UPDATE callq.call_workers SET heartbeat_at = clock_timestamp()`)
}

// Nothing is claimed outside of a queue's hours, nor started after they ended; what has started goes on, and the
// rest waits again.
//
//callq:guarantee 11
func TestHours(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.stage()
	r := openIn("Mon-Fri 09:00-18:00 Europe/Berlin")
	r.Queues = append(r.Queues, queue("always"))
	d := s.dispatcher(r)
	once := func(at string) {
		t.Helper()
		s.clockAt(at)
		if err := d.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.clockAt("2040-01-06 18:00:00 Europe/Berlin") // a Friday
	s.due("default", 2)
	s.due("always", 1)
	for _, at := range []string{"2040-01-06 18:00:00", "2040-01-08 12:00:00", "2040-01-09 08:59:59.999999"} {
		once(at + " Europe/Berlin")
		s.want(`SELECT bool_and((attempts > 0) = (queue = 'always')) FROM call_queue`)
	}
	once("2040-01-09 09:00:00 Europe/Berlin")
	s.want(`SELECT count(*) = 2 AND bool_and(start_by = claimed_at + interval '30 s') FROM callq.call_open WHERE queue = 'default'`)
	s.start(time.Minute, 1, 2)
	s.finish(1, 2)

	s.clockAt("2040-01-09 17:59:55 Europe/Berlin")
	s.due("default", 3)
	once("2040-01-09 17:59:55 Europe/Berlin")
	s.want(`SELECT count(*) = 3 AND bool_and(start_by = '2040-01-09 18:00:00 Europe/Berlin') FROM callq.call_open WHERE queue = 'default'`)
	s.clockAt("2040-01-09 17:59:59.9 Europe/Berlin")
	s.start(time.Minute, 4)
	s.clockAt("2040-01-09 18:00:00 Europe/Berlin")
	late := s.requests([]int64{5, 6}, time.Minute)
	answers, err := ledger.Start(t.Context(), s.pool, "w", late)
	if err != nil || len(late) != 2 || answers[0].Refused == nil || answers[1].Refused == nil {
		t.Errorf("starts after the hours: %+v, %v", answers, err)
	}
	once("2040-01-09 18:00:01 Europe/Berlin")
	s.want(`SELECT array_agg(call_id) = '{4}' FROM callq.call_open WHERE queue = 'default'`)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{5,6}' AND bool_and(error = 'not sent: no worker started it in time'
		AND charged = '[]') FROM call_attempts WHERE outcome = 'not_sent' AND queue = 'default'`)
	s.want(`SELECT count(*) = 2 FROM call_queue WHERE id IN (5, 6) AND status = 'new' AND failed_count = 0`)
	s.finish(4)
	s.want(`SELECT status = 'done' FROM call_queue WHERE id = 4`)
	once("2040-01-10 09:00:00 Europe/Berlin")
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{5,6}' FROM callq.call_open WHERE queue = 'default'`)
	s.verify()
}

// A look says when to look again, and nobody need tick for a queue to open.
//
//callq:guarantee 11
func TestHoursBegin(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.stage()
	s.clockAt("2040-01-09 08:59:48.500 Europe/Berlin")
	s.due("default", 1)
	r := openIn("09:00-18:00 Europe/Berlin")
	d := s.dispatcher(r)
	if err := d.Once(t.Context()); err != nil { // it takes in what is new, and looks again at once
		t.Fatal(err)
	}
	for _, tick := range []bool{true, false} {
		if next, err := d.Step(t.Context(), tick); err != nil || next > 11500*time.Millisecond {
			t.Errorf("look again in %s (%v), want when it opens, 11.5 s after the clock's time", next, err)
		}
	}

	s.clockIs(`pg_catalog.clock_timestamp() + (SELECT by FROM clock.gain)`)
	s.exec(`UPDATE clock.gain SET by = timestamptz '2040-01-09 08:59:59 Europe/Berlin' - pg_catalog.clock_timestamp()`)
	s.exec(`UPDATE callq.call_workers SET heartbeat_at = clock_timestamp() + interval '1 h'`)
	s.run(s.dispatcher(r, seldom).Run)
	s.eventually(`SELECT count(*) = 1 FROM callq.call_open`)
	s.want(`SELECT claimed_at >= '2040-01-09 09:00:00 Europe/Berlin' FROM callq.call_open`)
}

// Other hours are published as other limits are: audited, and what has not started is recalled.
//
//callq:guarantee 11
func TestHoursArePublished(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.stage()
	s.clockAt("2040-01-09 10:00:00Z")
	s.due("default", 2)
	s.once(rules())
	s.start(time.Minute, 1)
	changes := s.publish(openIn("Mon-Wed  12:00-13:00 UTC"))
	if len(changes) != 2 || !strings.HasSuffix(changes[0], "hours Mon-Wed 12:00-13:00 UTC") || changes[1] != "1 unstarted attempt recalled" {
		t.Errorf("changes %q", changes)
	}
	s.want(`SELECT hours = 'Mon-Wed 12:00-13:00 UTC' FROM callq.call_queues`)
	s.want(`SELECT change LIKE '%, hours Mon-Wed 12:00-13:00 UTC' FROM callq.call_audit ORDER BY id DESC LIMIT 1`)
	s.want(`SELECT array_agg(call_id) = '{1}' FROM callq.call_open`)
	if again := s.publish(openIn(" Mon-Wed 12:00-13:00 UTC")); len(again) != 0 {
		t.Errorf("the same changes %q", again)
	}
	if _, err := policy.Apply(t.Context(), s.pool, openIn("09:00-09:00"), "tester"); err == nil || !strings.Contains(err.Error(), `queue "default": hours: 09:00-09:00 never opens`) {
		t.Errorf("hours that never open: %v", err)
	}
	s.once(rules())
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)

	day := s.joined(rules())
	s.due("default", 1)
	s.tick(day)
	s.want(`SELECT count(*) = 3 FROM callq.call_open`)
	s.replace(day, openIn("12:00-13:00")) // as a reload does
	s.tick(day)
	s.want(`SELECT array_agg(call_id) = '{1}' FROM callq.call_open`)
}

// Hours whose zone a dispatcher does not know (another's zones are newer) keep it from this queue alone.
//
//callq:guarantee 11
func TestHoursOfAnUnknownZone(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules()
	r.Queues = append(r.Queues, queue("other"))
	d := s.dispatcher(r)
	if err := d.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.exec(`UPDATE callq.call_queues SET hours = '00:00-24:00 Mars/Olympus' WHERE name = 'default'`)
	s.due("default", 1)
	s.due("other", 1)
	if err := d.Tick(t.Context()); err == nil || !strings.Contains(err.Error(), `claim from queue "default": read the hours "00:00-24:00 Mars/Olympus": "Mars/Olympus" is not a time zone`) {
		t.Errorf("tick: %v", err)
	}
	s.want(`SELECT array_agg(queue) = '{other}' FROM callq.call_open`)
}
