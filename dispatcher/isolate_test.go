package dispatcher_test

import (
	"strings"
	"testing"
	"time"
)

// refuse adds a trigger that refuses some updates of calls.
func (s *system) refuse(when string) {
	s.t.Helper()
	s.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not this one''; END'`)
	s.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON call_queue FOR EACH ROW WHEN (` + when + `) EXECUTE FUNCTION refuse()`)
}

// A call that expired and whose row errs keeps no other from expiring.
//
//callq:guarantee 12
func TestExpiryThatErrs(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.refuse(`NEW.key = 'bad' AND NEW.status = 'failed'`)
	s.exec(`INSERT INTO call_queue (queue, key, expires_at)
		SELECT 'not in the rules', CASE i WHEN 7 THEN 'bad' ELSE '' END, '2020-01-02' FROM generate_series(1, 20) AS i`)
	s.once(rules())
	s.want(`SELECT count(*) = 19 FROM call_queue WHERE status = 'failed' AND error_message LIKE 'expired: %'`)
	s.want(`SELECT status = 'new' AND error_message = 'callq cannot end it: not this one' FROM call_queue WHERE key = 'bad'`)
}

// So it is with attempts that a sweeper closes; and a count of failures stays at the most that it can be.
//
//callq:guarantee 12
func TestClosingThatErrs(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.calls("default", 20)
	s.exec(`UPDATE call_queue SET failed_count = 2147483647 WHERE id = 3`)
	r := rules()
	d := s.another(r)
	s.once(r)
	s.start(time.Minute)
	s.refuse(`NEW.id = 7 AND NEW.status <> OLD.status`)
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)
	s.tick(d)
	s.want(`SELECT count(*) = 19 FROM call_attempts WHERE outcome = 'lost'`)
	s.want(`SELECT failed_count = 2147483647 AND status = 'failed' FROM call_queue WHERE id = 3`)
	s.want(`SELECT status = 'dispatched' AND error_message = 'callq cannot end it: not this one' FROM call_queue WHERE id = 7`)
}

// Somebody's open transaction on the rows of some calls keeps neither the others from being swept, nor claims
// from being made; once it ends, its calls are swept too.
//
//callq:guarantee 12
func TestSweepsWaitForNobody(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.calls("default", 20)
	r := rules()
	d := s.another(r)
	s.once(r)
	s.start(time.Minute)
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)
	s.calls("default", 5)
	holder := s.hold(`UPDATE call_queue SET error_message = 'mine' WHERE id = 7`, `SELECT FROM callq.call_open WHERE call_id = 9 FOR UPDATE`)
	began := time.Now()
	for range 3 {
		s.tick(d)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("three ticks took %s", took)
	}
	s.want(`SELECT count(*) = 18 FROM call_attempts WHERE outcome = 'lost'`)
	s.want(`SELECT count(*) = 5 FROM callq.call_open WHERE call_id > 20`)
	s.release(holder)
	for deadline := time.Now().Add(20 * time.Second); one[int](s, `SELECT count(*) FROM call_attempts WHERE call_id IN (7, 9)`) < 2; {
		if err := d.Tick(t.Context()); err != nil || time.Now().After(deadline) {
			t.Fatalf("%v; they are not swept, though nobody holds them", err)
		}
	}
	s.verifyLongAgo()
}

// Whatever one call holds, the others of its queue are claimed, and it fails with the reason.
//
//callq:guarantee 12
func TestOneCallStopsNoOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ insert, reason string }{
		"attempts at their end":     {`INSERT INTO call_queue (key, attempts) VALUES ('bad', 2147483647)`, "cannot be dispatched: integer out of range"},
		"a trigger that refuses it": {`INSERT INTO call_queue (key) VALUES ('bad')`, "cannot be dispatched: not this one"},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			r := rules()
			s.once(r)
			if name == "a trigger that refuses it" {
				s.refuse(`NEW.key = 'bad' AND NEW.status = 'dispatched'`)
			}
			s.exec(`INSERT INTO call_queue (key, call_data) SELECT k, '{"fine": "data of some length"}' FROM unnest('{bad,good}'::text[]) AS k, generate_series(1, 10)`)
			s.exec(c.insert)
			s.exec(`INSERT INTO call_queue (key) SELECT k FROM unnest('{bad,good}'::text[]) AS k, generate_series(1, 10)`)
			if name == "a trigger that refuses it" {
				s.exec(`UPDATE call_queue SET key = 'beside' WHERE key = 'bad' AND id <> 21`)
			}
			d := s.another(r)
			began := time.Now()
			for range 20 {
				s.poll(d)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("20 looks took %s", took)
			}
			s.want(`SELECT count(*) = 40 FROM callq.call_open WHERE call_id <> 21`)
			if got := one[string](s, `SELECT status || ': ' || coalesce(error_message, '') FROM call_queue WHERE id = 21`); !strings.HasPrefix(got, "failed: "+c.reason) {
				t.Errorf("the call is %s, want it failed: %s", got, c.reason)
			}
			if name != "attempts at their end" { // verify says that such a counter is wrong
				s.verify()
			}
		})
	}
}
