package dispatcher_test

import (
	"testing"
	"time"
)

// A call that was set to wait by hand while it runs is dispatched again: it stops no other, and ends as its
// attempt does.
func TestRequeuedByHand(t *testing.T) {
	t.Parallel()
	for _, set := range []string{`status = 'new'`, `status = 'new', attempts = 0`, `status = 'error', run_at = now()`} {
		parallel(t, set, func(_ *testing.T, s *system) {
			s.alive(50)
			d := s.dispatcher(rules(sliding("api", 100, time.Hour)))
			s.turn(d)
			s.calls("default", 3)
			s.tick(d)
			s.start(time.Hour, 1, 2)
			s.exec(`UPDATE call_queue SET ` + set)
			s.calls("default", 5)
			for range 2 {
				s.tick(d)
			}
			s.want(`SELECT count(*) = 8 FROM callq.call_open JOIN call_queue ON id = call_id WHERE status = 'dispatched'`)
			s.start(time.Hour)
			s.finish()
			s.want(`SELECT count(*) = 8 FROM call_queue WHERE status = 'done' AND attempts = 1`)
			s.verify()
		})
	}
}

// Where somebody's open transaction holds one, the others are claimed all the same, and it is dispatched again too:
// at once where only its attempt is held.
//
//callq:guarantee 12
func TestRequeuedAndHeld(t *testing.T) {
	t.Parallel()
	for held, meanwhile := range map[string]int{
		`SELECT FROM callq.call_open WHERE call_id = 1 FOR UPDATE`: 8,
		`SELECT FROM call_queue WHERE id = 1 FOR UPDATE`:           7,
	} {
		parallel(t, held, func(t *testing.T, s *system) {
			s.alive(50)
			d := s.dispatcher(rules(sliding("api", 100, time.Hour)))
			s.turn(d)
			s.calls("default", 3)
			s.tick(d)
			s.start(time.Hour)
			s.exec(`UPDATE call_queue SET status = 'new'`)
			s.calls("default", 5)
			holder := s.hold(held)
			began := time.Now()
			for range 3 {
				s.tick(d)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("three ticks took %s", took)
			}
			s.want(`SELECT count(*) = $1 FROM callq.call_open JOIN call_queue ON id = call_id WHERE status = 'dispatched'`, meanwhile)
			s.release(holder)
			s.exec(`UPDATE call_queue SET run_at = now() WHERE id = 1`)
			for range 2 {
				s.tick(d)
			}
			s.want(`SELECT count(*) = 8 FROM callq.call_open JOIN call_queue ON id = call_id WHERE status = 'dispatched'`)
			s.verify()
		})
	}
}
