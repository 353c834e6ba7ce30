package dispatcher_test

import (
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// Claims of the only dispatcher do not read the flows through an index, which has all versions of them while somebody holds an old
// snapshot.
//
//callq:guarantee 9
func TestFlowsAreKnown(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(500)
	s.publish(rules(sliding("api", 100, time.Hour)))
	pool := s.poolWith(parameter("application_name", "known"))
	d := s.dispatcher(policy.Policy{}, func(c *dispatcher.Config) { c.Pool = pool })
	claim := func() {
		s.exec(`INSERT INTO call_queue (key) VALUES ('a'), ('b')`)
		s.tick(d)
	}
	claim() // makes the flows
	begun := time.Now()
	const claims = 40
	for range claims {
		claim()
	}
	reads := int64(2 + time.Since(begun)/time.Second)
	s.want(`SELECT count(*) = 82 FROM callq.call_open`)
	pool.Close()
	s.eventually(`SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'known'`) // then they have said what they read
	scans := one[int64](s, `SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE indexrelname IN ('call_flows_pkey', 'call_flows_active_idx')`)
	if most := 8 * reads; scans > most {
		t.Errorf("%d claims went through the flows' indexes %d times, want at most %d", claims, scans, most)
	}
}

// A dispatcher goes on with the key whose turn is next, though it learnt whose turn that is from a claim for which the limit had no room.
func TestTurnsAreKnown(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(500)
	s.publish(rules(policy.Limit{Name: "api", Rate: limit.Rate{Units: 1}}))
	s.exec(`INSERT INTO call_queue (key) SELECT key FROM unnest('{a,b,c}'::text[]) AS k (key), generate_series(1, 2)`)
	s.tick(s.another(policy.Policy{}))
	for range 6 {
		d := s.another(policy.Policy{})
		s.tick(d) // there is no room
		s.start(time.Hour)
		s.finish()
		s.tick(d)
	}
	s.want(`SELECT array_agg(key ORDER BY attempts DESC, finished_at) = '{a,b,c,a,b,c}' FROM call_queue`)
}

// The first worker of a task gets the calls that waited for it when it comes, though it has just been read which workers and flows there
// are.
func TestFirstWorkerOfATask(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(10)
	now := time.Now()
	d := s.dispatcher(rules(), func(c *dispatcher.Config) { c.Now = func() time.Time { return now } })
	s.turn(d)
	s.exec(`INSERT INTO call_queue (task) VALUES ('mail'), ('http')`)
	s.poll(d)
	s.aliveIn("mail", 10, "mail")
	s.poll(d)
	s.want(`SELECT array_agg(task) = '{http}' FROM callq.call_open`)
	d.Joined()
	s.poll(d)
	s.want(`SELECT array_agg(task ORDER BY task) = '{http,mail}' FROM callq.call_open`)
}

// Calls of a task whose workers were full are claimed once a slot is free, whatever was claimed meanwhile for other workers.
func TestWorkersThatWereFull(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(10)
	s.aliveIn("mail", 1, "mail")
	now := time.Now()
	d := s.dispatcher(rules(), func(c *dispatcher.Config) { c.Now = func() time.Time { return now } })
	s.turn(d)
	s.exec(`INSERT INTO call_queue (task) VALUES ('mail'), ('mail')`)
	s.poll(d)
	s.start(time.Hour)
	now = now.Add(2 * time.Second) // what was known of flows no longer holds
	s.exec(`INSERT INTO call_queue (task) VALUES ('http')`)
	s.poll(d)
	s.want(`SELECT array_agg(task ORDER BY task) = '{http,mail}' FROM callq.call_open`)
	s.finish()
	s.poll(d)
	s.want(`SELECT array_agg(task ORDER BY task) = '{http,mail}' FROM callq.call_open`)
}

// What is known of the flows does not outlive what others do to them: each call is claimed once, in its order.
func TestFlowsThatOthersChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s *system, other *dispatcher.Dispatcher){
		"nobody": func(*system, *dispatcher.Dispatcher) {},
		"another dispatcher claims": func(s *system, other *dispatcher.Dispatcher) {
			s.calls("default", 1)
			s.tick(other)
		},
		"another dispatcher claims what was left": func(s *system, other *dispatcher.Dispatcher) {
			s.calls("default", 1)
			s.exec(`UPDATE call_queue SET run_at = now() + interval '1 h' WHERE status = 'new'`)
			s.tick(other)
			s.exec(`UPDATE call_queue SET run_at = now() WHERE status = 'new'`)
		},
		"they are written anew": func(s *system, _ *dispatcher.Dispatcher) {
			s.exec(`UPDATE callq.call_flows SET calls = calls + 0`)
		},
		"they are lost, and repaired": func(s *system, _ *dispatcher.Dispatcher) {
			s.exec(`DELETE FROM callq.call_flows`)
			if _, err := backlog.Repair(s.t.Context(), s.owner); err != nil {
				s.t.Fatal(err)
			}
		},
		"they are parked by hand": func(s *system, _ *dispatcher.Dispatcher) {
			s.exec(`UPDATE callq.call_flows SET wake_at = now()`)
		},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			s.alive(500)
			s.publish(rules(sliding("api", 100, time.Hour)))
			d, other := s.dispatcher(policy.Policy{}), s.another(policy.Policy{})
			for range 5 {
				s.calls("default", 1)
				s.tick(d)
				s.calls("default", 1)
				change(s, other)
				s.calls("default", 1)
				s.tick(d)
			}
			s.want(`SELECT count(*) = (SELECT count(*) FROM call_queue) AND count(*) >= 15 FROM callq.call_open`)
			s.want(`SELECT bool_and(status = 'dispatched' AND attempts = 1) FROM call_queue`)
			s.want(`SELECT count(*) = 0 FROM callq.call_broken_flows`)
			claimed := one[[]int64](s, `SELECT array_agg(call_id ORDER BY batch, call_id) FROM callq.call_open`)
			if !slices.IsSorted(claimed) {
				t.Errorf("claimed in the order %v", claimed)
			}
		})
	}
}
