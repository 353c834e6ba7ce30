package dispatcher_test

import (
	"fmt"
	"testing"
	"time"
)

// The holes that the README of a well-known rate-limited queue admits, as far as they are dispatchers'. That the status an insert
// returns may be stale is not one here: an insert returns an id, and a duplicate's is read until it is not (callqueue:
// TestDuplicateEndsBeforeLookUp). How soon a freed slot is used, `make latency` measures.

// Hole: producers each give the limit, and may disagree. Here it is in one place, whatever dispatchers' files and producers' rows say.
func TestRQProducersCannotDisagree(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	for n := range 40 {
		s.exec(fmt.Sprintf(`INSERT INTO call_queue (call_data) VALUES ('{"limit": %d, "rate": "%d/s", "concurrency": %d}')`, n, n, n))
	}
	many, few := s.joined(hourly(30)), s.joined(hourly(6)) // what was applied last holds for both
	for range 3 {
		s.tick(many)
		s.tick(few)
	}
	s.want(`SELECT count(*) = 6 FROM callq.call_open`)
	s.verify()
}

// Hole: a retry that falls due goes to the end of the queue, or to its head. Here it has the place that its priority and the time it
// fell due give it, among fresh and scheduled calls.
func TestRQDueRetryKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.exec(`INSERT INTO call_queue (priority, created_at, run_at) VALUES
		(5, now() - interval '50 s', now() - interval '40 s'),
		(5, now() - interval '50 s', now() + interval '1 h'),
		(5, now() - interval '50 s', now() - interval '20 s'),
		(1, now() - interval '50 s', now() - interval '10 s'),
		(9, now() - interval '50 s', now() - interval '60 s')`)
	r := rules(sliding("api", 1, time.Hour))
	s.once(r) // they are taken in
	s.exec(`UPDATE call_queue SET status = 'error', run_at = now() - interval '5 s' WHERE id = 2`)
	s.exec(`INSERT INTO call_queue (priority) VALUES (5)`)
	for n := range 6 {
		r.Limits[0].Rate.Units = int64(n + 1)
		s.once(r)
	}
	s.want(`SELECT array_agg(call_id ORDER BY batch, message_no, call_id) = '{4,1,3,2,6,5}' FROM callq.call_open`)
	s.verify()
}
