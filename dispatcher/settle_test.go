package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
)

// What is settled below a call's cost is free at once, and no sooner; what is settled above it counts from
// then on.
//
//callq:guarantee 1
func TestSettledUnits(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	tokens := byCost("tokens", 10, time.Hour)
	r := rules(tokens, sliding("requests", 100, time.Hour))
	s.exec(`INSERT INTO call_queue (cost) VALUES (8), (8), (4), (1)`)
	s.once(r)
	s.want(`SELECT array_agg(call_id) = '{1}' FROM callq.call_open`)
	s.start(time.Hour)
	s.once(r)
	s.want(`SELECT array_agg(call_id) = '{1}' FROM callq.call_open`) // it may still take 8
	s.settle(new(int64(2)))
	s.once(r)
	s.want(`SELECT array_agg(call_id) = '{2}' FROM callq.call_open`)
	s.start(time.Hour)
	s.settle(new(int64(0)))
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{3,4}' FROM callq.call_open`)
	s.start(time.Hour)
	s.settle(new(int64(8)), 3) // beside the 2 before and the 1 that runs: over by one
	s.exec(`INSERT INTO call_queue (cost) VALUES (1)`)
	s.once(r)
	s.want(`SELECT array_agg(call_id) = '{4}' FROM callq.call_open`)
	s.settle(new(int64(0)), 4)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`) // 2 and 8 are used, and fill it
	s.want(`SELECT sum(used) FILTER (WHERE limit_name = 'tokens') = 10 AND sum(used) FILTER (WHERE limit_name = 'requests') = 4 FROM callq.call_usage`)
	s.verify()
}

// A lost attempt keeps the cost that was claimed.
//
//callq:guarantee 1
func TestLostIsNotSettled(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	tokens := byCost("tokens", 10, time.Hour)
	s.exec(`INSERT INTO call_queue (cost, max_attempts) VALUES (8, 1)`)
	s.once(rules(tokens))
	s.start(time.Hour)
	s.exec(`UPDATE callq.call_open SET deadline = started_at`)
	s.once(rules(tokens))
	s.want(`SELECT outcome = 'lost' AND settled IS NULL FROM call_attempts`)
	s.want(`SELECT sum(used) = 8 FROM callq.call_usage`)
	s.verify()
}

// A limit that begins to count cost, or is new, counts what was settled.
//
//callq:guarantee 1
func TestSettledUnitsAreCountedAnew(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.exec(`INSERT INTO call_queue (cost) VALUES (8), (8), (1), (1)`)
	api := sliding("api", 10, time.Hour)
	s.once(rules(api))
	s.start(time.Hour)
	s.settle(new(int64(3)), 1)
	s.settle(nil, 2)
	s.want(`SELECT sum(used) = 2 FROM callq.call_usage`)
	api.CountCost = true
	tokens := byCost("tokens", 100, time.Hour)
	s.publish(rules(api, tokens))
	s.settle(new(int64(4)), 3) // it cost 1, and so fits the limit in either form
	s.settle(new(int64(0)), 4)
	s.once(rules(api, tokens))
	s.want(`SELECT count(*) = 2 AND bool_and(complete_since IS NOT NULL) FROM callq.call_limits`)
	s.want(`SELECT bool_and(used = 3 + 8 + 4) AND count(*) = 2 FROM (SELECT sum(used) AS used FROM callq.call_usage GROUP BY limit_name) u`)
	s.verify()
}

// A handler of one's own has a write gate only where a limit is anchored at the start. Without one it counts until
// it ends, even where the limit is given that anchor while it runs.
//
//callq:guarantee 1
func TestOwnHandlersGate(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.aliveIn("own", 100, "http", "own")
	api, other := sliding("api", 2, 2*time.Second), sliding("other", 100, time.Minute)
	api.SendWithin, api.Slack, other.SendWithin = time.Second, time.Second, 100*time.Millisecond
	s.exec(`INSERT INTO call_queue (task) VALUES ('own'), ('http')`)
	s.once(rules(api, other))
	s.want(`SELECT bool_and(send_within IS NOT DISTINCT FROM CASE task WHEN 'http' THEN interval '100 ms' END) AND count(*) = 2 FROM callq.call_open`)
	s.start(time.Hour)
	api.Anchor = limit.AnchorStart
	s.publish(rules(api, other))
	s.exec(`INSERT INTO call_queue (task) VALUES ('own'), ('own')`)
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 min'`)
	s.exec(`UPDATE callq.call_limits SET complete_since = clock_timestamp()`)
	s.once(rules(api, other))
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{1,2,3}' FROM callq.call_open`) // the http one's is long over
	s.want(`SELECT send_within = interval '1 s' FROM callq.call_open WHERE call_id = 3`)
}
