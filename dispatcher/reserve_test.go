package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// A queue whose calls need units of two limits at once, or several units of one, gets its share beside others
// that take each unit as it comes free.
//
//callq:guarantee 10
func TestQueuesThatShareLimitsTakeTurns(t *testing.T) {
	t.Parallel()
	const window = 10 * time.Second
	costly := byCost("tokens", 10, window)
	// One unit, or as many as in costs, come free in each step.
	for name, c := range map[string]struct {
		limits []policy.Limit
		queues []policy.Queue
		costs  []int
		least  int // calls that each is to have had after 12 steps
	}{
		"two limits out of step": {
			[]policy.Limit{sliding("one", 1, window), sliding("two", 1, window)},
			[]policy.Queue{queue("a", "one"), queue("b", "one", "two"), queue("c", "two")},
			[]int{1, 1, 1},
			2,
		},
		"a large call": {
			[]policy.Limit{costly},
			[]policy.Queue{queue("large", "tokens"), queue("small", "tokens")},
			[]int{10, 1},
			3,
		},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			s.alive(100)
			r := policy.Policy{Limits: c.limits, Queues: c.queues}
			d := s.dispatcher(r)
			s.turn(d)
			for i, q := range c.queues {
				s.exec(`INSERT INTO call_queue (queue, cost) SELECT $1, $2 FROM generate_series(1, 100)`, q.Name, c.costs[i])
			}
			for step := range 24 {
				s.tick(d)
				s.start(time.Hour)
				s.finish()
				// Of the limits in turn, what was used is over; of one that counts cost, half of it.
				l := c.limits[step%len(c.limits)]
				s.exec(`DELETE FROM callq.call_usage WHERE limit_name = $1 AND ($2 = 1 OR ctid IN (SELECT ctid FROM callq.call_usage ORDER BY bucket LIMIT 1))`,
					l.Name, l.Rate.Units)
			}
			for _, q := range c.queues {
				s.want(fmt.Sprintf(`SELECT count(*) >= %d FROM call_queue WHERE queue = '%s' AND status = 'done'`, c.least, q.Name))
			}
			t.Log(one[string](s, `SELECT string_agg(queue || ' ' || n, ', ') FROM (SELECT queue, count(*) AS n FROM call_attempts GROUP BY 1 ORDER BY 1) c`))
		})
	}
}

// So does one whose next key has used up a limit of its own: another of its keys may go.
//
//callq:guarantee 10
func TestQueueTakesItsTurnForAnotherKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	const window = 10 * time.Second
	d := s.dispatcher(policy.Policy{
		Limits: []policy.Limit{sliding("one", 1, window), sliding("two", 1, window), perKey("own", 1, time.Hour)},
		Queues: []policy.Queue{queue("a", "one"), queue("b", "one", "two", "own"), queue("c", "two")},
	})
	s.turn(d)
	s.calls("a", 20)
	s.calls("c", 20)
	s.exec(`INSERT INTO callq.call_usage (limit_name, key, bucket, shard, used) VALUES ('own', 'blocked', clock_timestamp(), 1, 1)`)
	for step := range 12 {
		s.tick(d)
		s.start(time.Hour)
		s.finish()
		if step == 0 {
			s.exec(`INSERT INTO call_queue (queue, key) VALUES ('b', 'blocked'), ('b', 'free')`)
		}
		s.exec(`DELETE FROM callq.call_usage WHERE limit_name = $1`, []string{"one", "two"}[step%2])
	}
	s.want(`SELECT status = 'done' FROM call_queue WHERE key = 'free'`)
}

// A queue whose call also waits for what comes free much later, or nobody knows when, keeps nobody from a limit
// that is fast, nor from slots.
func TestTurnsAreShort(t *testing.T) {
	t.Parallel()
	fast, slow := sliding("fast", 1, time.Second), sliding("slow", 1, time.Hour)
	slots := func(name string) policy.Limit {
		return policy.Limit{Name: name, Rate: limit.Rate{Units: 1}}
	}
	for name, limits := range map[string][]policy.Limit{
		"of a rate": {fast, slow}, "of slots, for a rate": {slots("fast"), slow}, "of a rate, for slots": {fast, slots("slow")},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			s.alive(100)
			d := s.dispatcher(policy.Policy{
				Limits: limits, Queues: []policy.Queue{queue("both", "fast", "slow"), queue("one", "fast"), queue("other", "slow")},
			})
			s.turn(d)
			s.calls("other", 1)
			s.tick(d)
			s.start(time.Hour)
			s.calls("both", 10)
			s.calls("one", 10)
			for range 6 {
				s.tick(d)
				s.start(time.Hour)
				s.finish(one[[]int64](s, `SELECT coalesce(array_agg(call_id), '{0}') FROM callq.call_open WHERE queue = 'one'`)...)
				s.exec(`DELETE FROM callq.call_usage WHERE limit_name = 'fast'`)
			}
			s.want(`SELECT count(*) >= 5 FROM call_queue WHERE queue = 'one' AND status = 'done'`)
		})
	}
}

// Processes that run once each, as from a cron, serve now this queue first and now that.
func TestQueuesTakeTurnsOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := policy.Policy{Limits: []policy.Limit{sliding("one", 1, time.Hour)}, Queues: []policy.Queue{queue("a", "one"), queue("b", "one")}}
	s.once(r)
	s.calls("a", 100)
	s.calls("b", 100)
	for range 20 {
		s.once(r)
		s.start(time.Hour)
		s.finish()
		s.exec(`DELETE FROM callq.call_usage`) // what was used is over
	}
	s.want(`SELECT count(DISTINCT queue) = 2 FROM call_attempts`)
}
