package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// keyed inserts n calls of a key into the default queue.
func (s *system) keyed(key string, n int) {
	s.t.Helper()
	s.exec(`INSERT INTO call_queue (key) SELECT $1 FROM generate_series(1, $2)`, key, n)
}

// open is how many attempts are open, by key.
func (s *system) open() string {
	s.t.Helper()
	return one[string](s, `SELECT coalesce(string_agg(key || ':' || n, ' ' ORDER BY key), '') FROM
		(SELECT key, count(*) AS n FROM callq.call_open GROUP BY key) o`)
}

func byCost(name string, units int64, window time.Duration) policy.Limit {
	return policy.Limit{Name: name, Rate: limit.Rate{Units: units, Window: window}, CountCost: true}
}

func perKey(name string, units int64, window time.Duration) policy.Limit {
	return policy.Limit{Name: name, Rate: limit.Rate{Units: units, Window: window}, PerKey: true}
}

//callq:guarantee 1
func TestPerKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.keyed("a", 50)
	s.keyed("b", 2)
	s.keyed("", 5)
	r := rules(perKey("each", 3, time.Hour))
	s.once(r)
	if got := s.open(); got != ":3 a:3 b:2" {
		t.Errorf("open %s, want :3 a:3 b:2", got)
	}
	s.start(time.Hour)
	s.finish()
	s.keyed("b", 2)
	s.keyed("c", 4)
	s.once(r)
	if got := s.open(); got != "b:1 c:3" {
		t.Errorf("open %s after the others used theirs, want b:1 c:3", got)
	}
	s.verify()
}

// Keys take turns, also from one claim to the next, however long the backlog of one is and
// whatever its own limit says.
//
//callq:guarantee 10
func TestKeysTakeTurns(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.keyed("a", 500)
	for _, key := range []string{"b", "c", "d", ""} {
		s.keyed(key, 100)
	}
	r := rules(sliding("all", 3, time.Hour), perKey("each", 20, time.Hour))
	for i := range 10 { // one more unit at a time
		r.Limits[0].Rate.Units = int64(3 * (i + 1))
		s.once(r)
	}
	if got := s.open(); got != ":6 a:6 b:6 c:6 d:6" {
		t.Errorf("open %s, want 6 each", got)
	}
	s.verify()
}

// More keys than a claim looks at, nearly all of them blocked: the others are found all the same.
//
//callq:guarantee 10
func TestManyBlockedKeys(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(10000)
	r := rules(perKey("each", 1, time.Hour))
	s.exec(`INSERT INTO call_queue (key) SELECT 'k' || i FROM generate_series(1, 1000) i, generate_series(1, 2)`)
	for range 8 {
		s.once(r)
	}
	s.want(`SELECT count(*) = 1000 AND count(DISTINCT key) = 1000 FROM callq.call_open`)
	s.keyed("k1005", 1)
	for range 8 {
		s.once(r)
	}
	s.want(`SELECT count(*) = 1001 FROM callq.call_open`)
	s.verify()
}

//callq:guarantee 1 10
func TestCountCost(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	tokens := byCost("tokens", 10, time.Hour)
	r := rules(tokens, sliding("requests", 100, time.Hour))
	s.exec(`INSERT INTO call_queue (cost) VALUES (6), (5), (3), (11)`)
	s.once(r)
	s.want(`SELECT array_agg(call_id) = '{1}' FROM callq.call_open`) // 5 does not fit, and 3 does not pass it
	s.want(`SELECT limits = '{requests,tokens}' AND costs = '{1,6}' FROM callq.call_open`)
	s.start(time.Hour)
	s.finish()
	s.want(`SELECT count(*) = 2 AND sum(used) = 7 FROM callq.call_usage`)
	r.Limits[0].Rate.Units = 14
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{2,3}' FROM callq.call_open`)
	s.want(`SELECT status = 'new' FROM call_queue WHERE id = 4`)
	s.exec(`INSERT INTO call_queue (cost, priority) VALUES (25, 0)`)
	r.Limits[0].Rate.Units = 24
	s.once(r)
	s.want(`SELECT status = 'failed' AND error_message = 'cost 25 is over limit tokens, which allows 24 per 1h, sliding window'
		FROM call_queue WHERE cost = 25`)
	s.want(`SELECT status = 'new' FROM call_queue WHERE id = 4`) // 10 are left
	s.verify()
}

//callq:guarantee 1
func TestConcurrency(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	each := perKey("each", 2, 0)
	r := rules(sliding("all", 5, 0), each)
	for _, key := range []string{"a", "b", "c"} {
		s.keyed(key, 10)
	}
	s.once(r)
	if got := s.open(); got != "a:2 b:2 c:1" {
		t.Errorf("open %s, want a:2 b:2 c:1", got)
	}
	s.start(time.Hour)
	s.once(r)
	s.want(`SELECT count(*) = 5 FROM callq.call_open`)
	s.finish(one[int64](s, `SELECT min(call_id) FROM callq.call_open WHERE key = 'a'`))
	s.once(r)
	if got := s.open(); got != "a:1 b:2 c:2" { // c stood first in line
		t.Errorf("open %s after one of a's ended, want a:1 b:2 c:2", got)
	}
	s.start(time.Hour)

	// A lost one may still run at the API until its deadline and a little more.
	s.exec(`UPDATE callq.call_open SET deadline = clock_timestamp() - interval '1 ms', started_at = started_at - interval '1 s' WHERE key = 'a'`)
	r.Limits[0].Slack, r.Limits[1].Slack = time.Minute, time.Minute
	s.once(r)
	s.want(`SELECT outcome = 'lost' FROM call_attempts WHERE key = 'a' AND outcome <> 'done'`)
	s.want(`SELECT count(*) = 4 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_usage SET bucket = clock_timestamp()`)
	r.Limits[0].Slack, r.Limits[1].Slack = time.Microsecond, time.Microsecond
	s.once(r)
	s.want(`SELECT count(*) = 5 FROM callq.call_open`)
	s.verifyLongAgo()
}

// A limit that changes what it counts, and whose, is counted anew from the ledger.
//
//callq:guarantee 7
func TestLimitChangesItsForm(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.exec(`INSERT INTO call_queue (key, cost) VALUES ('a', 3), ('a', 4), ('b', 5)`)
	s.once(rules(sliding("api", 10, time.Hour)))
	s.start(time.Hour)
	s.finish()
	form := perKey("api", 9, time.Hour)
	form.CountCost = true
	s.once(rules(form))
	s.want(`SELECT array_agg(key || used ORDER BY key) = '{a7,b5}' FROM (SELECT key, sum(used) AS used FROM callq.call_usage GROUP BY key) u`)
	s.exec(`INSERT INTO call_queue (key, cost) VALUES ('a', 2), ('a', 1), ('b', 5)`)
	s.once(rules(form))
	if got := s.open(); got != "a:1" {
		t.Errorf("open %s, want a:1: a has 2 left, b 4", got)
	}
	s.verify()
}

// What runs while its limit changes its form will be charged in the former one, where claims no longer
// look: the limit stays shut until it has closed, and then counts it in the new one.
//
//callq:guarantee 7
func TestLimitChangesItsFormUnderACall(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	form := perKey("api", 2, time.Hour)
	s.exec(`INSERT INTO call_queue (key, cost) VALUES ('a', 2), ('b', 1)`)
	s.once(rules(form))
	s.start(time.Hour)
	s.calls("default", 3)
	for _, changed := range []func(){
		func() { form.PerKey = false },
		func() { form.CountCost = true },
	} {
		changed()
		s.once(rules(form))
		s.want(`SELECT complete_since IS NULL FROM callq.call_limits`)
		s.want(`SELECT count(*) = 2 FROM callq.call_open`)
	}
	s.finish()
	s.once(rules(form))
	s.want(`SELECT complete_since IS NOT NULL FROM callq.call_limits`)
	s.want(`SELECT sum(used) = 3 AND bool_and(key = '') FROM callq.call_usage`)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`) // 3 of 2 are used
	s.verify()
}
