package dispatcher_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/internal/policy"
)

// Processes that tick at once give out exactly what the limits allow, in all and to each key: not a unit more, and, since they
// wait for each other's locks, not one less.
//
//callq:guarantee 1
func TestClaimRace(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, insert string
		rules        policy.Policy
		want         string // of all open attempts o
	}{
		{
			"two limits on one queue",
			`INSERT INTO call_queue (queue) SELECT 'default' FROM generate_series(1, 150)`,
			policy.Policy{
				Limits: []policy.Limit{sliding("wide", 100, time.Hour), sliding("narrow", 60, time.Hour)},
				Queues: []policy.Queue{queue("default", "wide", "narrow")},
			},
			`count(*) = 60 AND bool_and(limits @> '{wide,narrow}')`,
		},
		{
			"two queues that share one limit",
			`INSERT INTO call_queue (queue) SELECT unnest('{one,two}'::text[]) FROM generate_series(1, 150)`,
			policy.Policy{
				Limits: []policy.Limit{sliding("a", 70, time.Hour), sliding("shared", 100, time.Hour), sliding("z", 60, time.Hour)},
				Queues: []policy.Queue{queue("one", "a", "shared"), queue("two", "shared", "z")},
			},
			`count(*) = 100 AND bool_and(limits @> '{shared}')`,
		},
		{
			"a limit for all, one per key and one by cost",
			`INSERT INTO call_queue (key, cost) SELECT 'k' || k, 1 + i % 2 FROM generate_series(1, 12) k, generate_series(1, 20) i`,
			rules(sliding("all", 45, time.Hour), perKey("each", 5, time.Hour), byCost("tokens", 70, time.Hour)),
			`count(*) <= 45 AND sum(cost) <= 70 AND (count(*) = 45 OR sum(cost) > 68)
				AND (SELECT max(n) <= 5 FROM (SELECT count(*) AS n FROM callq.call_open GROUP BY key) k)`,
		},
	}
	for _, c := range cases {
		parallel(t, c.name, func(_ *testing.T, s *system) {
			s.alive(1000) // room for all
			dispatchers := s.racers(16, c.rules)
			s.exec(c.insert)
			for range 5 {
				s.claimAtOnce(dispatchers)
				s.want(`SELECT ` + c.want + ` FROM callq.call_open o`)
				s.verify()
				s.exec(`TRUNCATE callq.call_open`)
				s.exec(`UPDATE call_queue SET status = 'new', attempts = 0, dispatched_at = NULL`)
			}
		})
	}
}

// A claim waits for the rules, the limits and the room, and reads all that counts, the clock too,
// once it has them. A look between ticks passes by instead.
//
//callq:guarantee 1 13
func TestClaimReadsUnderItsLocks(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, lock, change string
		want               int
	}{
		{
			"a limit, lowered meanwhile", `SELECT FROM callq.call_limits WHERE name = 'b' FOR NO KEY UPDATE`,
			`UPDATE callq.call_limits SET rate = 2 WHERE name = 'b'`, 2,
		},
		{
			"a queue that loses a limit meanwhile", `SELECT FROM callq.call_queues FOR NO KEY UPDATE`,
			`UPDATE callq.call_queues SET limits = '{a}'`, 7,
		},
		{"the room, filled meanwhile", `SELECT FROM callq.call_locks WHERE name = 'capacity' FOR UPDATE`, opensSQL(`SELECT -i AS id FROM generate_series(1, 19) i`), 1},
	}
	for _, c := range cases {
		parallel(t, c.name, func(t *testing.T, s *system) {
			s.alive(20)
			r := rules(sliding("a", 7, time.Hour), sliding("b", 5, time.Hour))
			s.once(r)
			s.calls("default", 10)
			tx := s.hold(c.lock)
			if err := s.another(r).Poll(t.Context()); err != nil {
				t.Error(err)
			}
			s.want(`SELECT count(*) = 0 FROM callq.call_open`)
			d := s.another(policy.Policy{})
			var ticked sync.WaitGroup
			ticked.Go(func() {
				s.tick(d)
			})
			s.eventually(waitingSQL, 1)
			s.within(tx, c.change)
			released := one[time.Time](s, `SELECT clock_timestamp()`)
			s.release(tx)
			ticked.Wait()
			s.want(`SELECT count(*) = $1 AND min(claimed_at) > $2 FROM callq.call_open WHERE call_id > 0`, c.want, released)
		})
	}
}

// A claim passes over a call whose row somebody holds.
//
//callq:guarantee 12
func TestClaimPassesOverHeldCalls(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules()
	s.once(r)
	s.calls("default", 3)
	tx := s.hold(`SELECT FROM call_queue WHERE id = 1 FOR UPDATE`)
	d := s.another(r)
	s.turn(d)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{2,3}' FROM callq.call_open`)
	s.release(tx)
	for range 1000 { // it may have looked just before
		if s.turn(d); one[bool](s, `SELECT count(*) = 3 FROM callq.call_open`) {
			return
		}
	}
	t.Error("the call that is free again is not claimed")
}

// A row of call_locks that is missing is said, with what to do, where claims would stop for good.
func TestMissingLockIsSaid(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.once(rules())
	s.calls("default", 1)
	s.exec(`DELETE FROM callq.call_locks WHERE name = 'capacity'`)
	d := s.dispatcher(rules())
	err := d.Tick(t.Context())
	if err == nil || !strings.Contains(err.Error(), "INSERT INTO callq.call_locks") {
		t.Fatalf("got %v", err)
	}
	s.exec(err.Error()[strings.Index(err.Error(), "INSERT"):])
	s.tick(d)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`)
}
