package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// With more keys than a claim looks at, those that are blocked are put aside. Whatever may end that has them
// looked at again: here each key has one call that took its unit, and one that waits for it.
//
//callq:guarantee 10
func TestParkedKeysAreWoken(t *testing.T) {
	t.Parallel()
	const keys = 600
	hourly := rules(perKey("each", 1, time.Hour))
	one := rules(policy.Limit{Name: "each", Rate: limit.Rate{Units: 1}, PerKey: true})
	short := rules(perKey("each", 1, 500*time.Millisecond))
	byCost := rules(perKey("each", 1, time.Hour))
	byCost.Limits[0].CountCost = true
	for name, c := range map[string]struct {
		rules policy.Policy
		free  func(t *testing.T, s *system)
		want  string // keys whose second call is open then
	}{
		"nothing": {hourly, func(*testing.T, *system) {}, `count(*) = 0`},
		"a call ends": {one, func(_ *testing.T, s *system) {
			s.exec(`UPDATE callq.call_open SET started_at = NULL`)
			s.start(time.Hour, 300, 301)
			s.finish(300, 301)
		}, `array_agg(key ORDER BY key) = '{k300,k301}'`},
		"a call is cancelled": {hourly, func(_ *testing.T, s *system) { s.cancel(300) }, `array_agg(key) = '{k300}'`},
		"a call is settled at less than its cost": {byCost, func(_ *testing.T, s *system) {
			s.start(time.Hour, 300, 301)
			s.settle(new(int64(0)), 300)
			s.settle(new(int64(1)), 301)
		}, `array_agg(key) = '{k300}'`},
		"a key's pause ends": {hourly, func(t *testing.T, s *system) {
			pause := ledger.Paused{What: "limit", Name: "each", Key: "k300", Author: ledger.Author{Reason: "test", By: "test"}}
			if n, err := ledger.Pause(t.Context(), s.pool, pause); err != nil || n != 1 {
				t.Fatal(n, err)
			}
			s.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id = 300`)
			s.tick(s.dispatcher(hourly))
			s.want(`SELECT count(*) = 0 FROM callq.call_open WHERE key = 'k300'`)
			if was, err := ledger.Resume(t.Context(), s.pool, "limit", "each", "k300", ledger.By("test")); err != nil || !was {
				t.Fatal(was, err)
			}
		}, `array_agg(key) = '{k300}'`},
		"a rate is set": {hourly, func(t *testing.T, s *system) {
			if _, err := policy.Override(t.Context(), s.pool, "each", limit.Rate{Units: 2, Window: time.Hour}, ledger.By("test")); err != nil {
				t.Fatal(err)
			}
		}, `count(*) = 600`},
		"other rules are published": {hourly, func(_ *testing.T, s *system) {
			s.publish(rules(perKey("each", 2, time.Hour)))
		}, `count(*) = 600`},
		"a limit is taken from the queue": {hourly, func(_ *testing.T, s *system) {
			r := rules(perKey("each", 1, time.Hour))
			r.Queues[0].Limits = nil
			s.publish(r)
		}, `count(*) = 600`},
		"time": {short, func(t *testing.T, s *system) {
			s.start(time.Hour)
			s.finish()
			s.exec(`SELECT pg_sleep(extract(epoch FROM max(bucket) + interval '0.51 s' - clock_timestamp())) FROM callq.call_usage`)
		}, `count(*) = 600`},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			s.alive(10000)
			s.exec(`INSERT INTO call_queue (key) SELECT 'k' || i FROM generate_series(1, 2) turn, generate_series(1, $1) i`, keys)
			s.once(c.rules)
			s.once(c.rules)
			s.want(`SELECT count(*) = $1 FROM callq.call_open WHERE call_id <= $1`, keys)
			s.want(`SELECT count(*) > 300 FROM callq.call_flows WHERE wake_at IS NOT NULL`)
			c.free(t, s)
			d := s.dispatcher(c.rules)
			for range 3 {
				s.tick(d)
			}
			s.want(`SELECT `+c.want+` FROM callq.call_open WHERE call_id > $1`, keys)
			s.verify()
		})
	}
}

// A large call that is put aside is not passed by small ones behind it, but by one of a smaller priority.
//
//callq:guarantee 10
func TestParkedCallIsNotPassed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(10000)
	r := rules(perKey("each", 10, time.Hour))
	r.Limits[0].CountCost = true
	s.exec(`INSERT INTO call_queue (key, cost) SELECT 'k' || i, cost FROM unnest(ARRAY[6, 5]) cost, generate_series(1, 600) i`)
	s.once(r)
	s.want(`SELECT count(*) = 600 FROM callq.call_open`)
	// Who cancels or deletes it wakes nobody, so that it must be looked at again soon.
	s.want(`SELECT count(*) = 1 FROM callq.call_flows WHERE key = 'k300' AND wake_at BETWEEN now() + interval '30 s' AND now() + interval '1 min'`)
	s.exec(`INSERT INTO call_queue (key, cost, priority) VALUES ('k300', 1, 5), ('k300', 1, 9), ('k300', 2, 0)`)
	s.once(r)
	s.want(`SELECT array_agg(call_id) = '{1203}' FROM callq.call_open WHERE key = 'k300' AND call_id > 600`)
	s.exec(`DELETE FROM call_queue WHERE id = 900`)
	s.exec(`UPDATE callq.call_flows SET wake_at = wake_at - interval '1 min' WHERE key = 'k300'`)
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{1201,1202,1203}' FROM callq.call_open WHERE key = 'k300' AND call_id > 600`)
	s.verify()
}

// Lines of keys that have had all their calls claimed go, when there are many.
func TestEmptyLinesGo(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(10000)
	s.exec(`INSERT INTO call_queue (key) SELECT 'k' || i FROM generate_series(1, 2000) i`)
	s.once(rules())
	s.want(`SELECT count(*) = 2000 FROM callq.call_open`)
	s.want(`SELECT count(*) < 256 FROM callq.call_flows`)
	s.want(`SELECT count(*) = 0 FROM callq.call_segments`)
	s.calls("default", 3)
	s.once(rules())
	s.once(rules())
	s.want(`SELECT count(*) = 1 FROM callq.call_flows WHERE key = '' AND calls = 0`) // kept: making one costs more
}

// News of a queue that is paused, or whose workers are away or full, does not pile up.
func TestNewsIsTakenInThoughNothingIsClaimed(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, s *system, r *policy.Policy){
		"paused": func(t *testing.T, s *system, _ *policy.Policy) {
			s.pause(ledger.Paused{What: "queue", Name: "default", Author: ledger.Author{Reason: "test", By: "test"}})
		},
		"no worker carries the label": func(_ *testing.T, s *system, r *policy.Policy) { s.alive(10); r.Queues[0].On = "elsewhere" },
		"workers are full": func(_ *testing.T, s *system, _ *policy.Policy) {
			s.alive(1)
			s.calls("default", 10)
		},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			r := rules()
			s.once(r)
			prepare(t, s, &r)
			s.once(r)
			s.calls("default", 5)
			s.exec(`INSERT INTO callq.call_inbox (queue, at, key) SELECT 'default', clock_timestamp(), 'k' FROM generate_series(1, 5000)`)
			for range 4 {
				s.once(r)
			}
			s.want(`SELECT count(*) = 0 FROM callq.call_inbox`)
			s.want(`SELECT sum(calls) >= 5 FROM callq.call_flows`)
		})
	}
}
