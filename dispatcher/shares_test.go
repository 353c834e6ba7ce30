package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// sharedRules has two queues use one limit.
func sharedRules(l policy.Limit, shares limit.Shares) policy.Policy {
	l.Shares = shares
	return policy.Policy{Limits: []policy.Limit{l}, Queues: []policy.Queue{queue("chat", l.Name), queue("import", l.Name)}}
}

// open fails the test unless so many attempts of a queue are open, or one more or less: where a part is no whole number, or whose turn
// the first unit is.
func (s *system) openAbout(where string, want int64) {
	s.t.Helper()
	if got := one[int64](s, `SELECT count(*) FROM callq.call_open JOIN call_queue q ON q.id = call_id WHERE `+where); got < want-1 || got > want+1 {
		s.t.Errorf("%d attempts are open where %s, want %d", got, where, want)
	}
}

// Each share has its part while it has calls, and the others use what it leaves: by every algorithm, and for each key.
func TestShares(t *testing.T) {
	t.Parallel()
	rate := func(text string, shape limit.Shape) limit.Rate {
		r, err := limit.ParseShape(text, shape)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	perKey := sliding("llm", 100, time.Hour)
	perKey.PerKey = true
	for name, l := range map[string]policy.Limit{
		"sliding window": sliding("llm", 100, time.Hour),
		"fixed window":   {Name: "llm", Rate: rate("100/1d", limit.Shape{Algorithm: limit.FixedWindow})},
		"token bucket":   {Name: "llm", Rate: rate("1/1h", limit.Shape{Algorithm: limit.TokenBucket, Burst: 100})},
		"leaky bucket":   {Name: "llm", Rate: rate("60/1h", limit.Shape{Algorithm: limit.LeakyBucket, Tolerance: time.Minute})},
		"concurrency":    {Name: "llm", Rate: limit.Rate{Units: 100}},
		"per key":        perKey,
	} {
		for _, c := range []struct {
			chat, imports int
			want          float64 // chat's part
		}{{200, 200, 0.3}, {10, 200, 0.1}, {0, 200, 0}, {200, 0, 1}, {200, 20, 0.8}} {
			parallel(t, fmt.Sprintf("%s/%d and %d", name, c.chat, c.imports), func(t *testing.T, s *system) {
				s.alive(1000)
				r := sharedRules(l, limit.Shares{"chat": 30})
				s.publish(r)
				s.exec(`INSERT INTO call_queue (queue, key) SELECT 'chat', 'k' FROM generate_series(1, $1)`, c.chat)
				s.exec(`INSERT INTO call_queue (queue, key) SELECT 'import', 'k' FROM generate_series(1, $1)`, c.imports)
				s.once(r)
				all := int64(100)
				if name == "leaky bucket" {
					all = 2
				}
				if got := one[int64](s, `SELECT count(*) FROM callq.call_open`); got != all {
					t.Errorf("%d attempts are open, want %d", got, all)
				}
				s.openAbout(`q.queue = 'chat'`, int64(c.want*float64(all)))
				s.want(`SELECT count(*) = 0 FROM callq.call_open WHERE shares IS DISTINCT FROM jsonb_build_object('llm', CASE queue WHEN 'chat' THEN 'chat' ELSE 'rest' END)`)
			})
		}
	}
}

// What a share lent it gets back as units come free, before others have more.
func TestSharesComeBack(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	r := sharedRules(policy.Limit{Name: "llm", Rate: limit.Rate{Units: 100}}, limit.Shares{"chat": 30, limit.Rest: 70})
	d := s.dispatcher(r)
	s.publish(r)
	s.calls("import", 1000)
	s.turn(d)
	s.want(`SELECT count(*) = 100 FROM callq.call_open WHERE queue = 'import'`)
	s.calls("chat", 200)
	s.turn(d)
	s.want(`SELECT count(*) = 100 FROM callq.call_open WHERE queue = 'import'`)
	for range 3 {
		s.start(time.Minute)
		s.exec(`CREATE TABLE ending AS SELECT call_id FROM callq.call_open WHERE queue = 'import' LIMIT 10`)
		s.finish(one[[]int64](s, `SELECT array_agg(call_id) FROM ending`)...)
		s.exec(`DROP TABLE ending`)
		s.turn(d)
	}
	s.openAbout(`q.queue = 'chat'`, 30)
	for range 10 {
		s.start(time.Minute)
		s.finish(one[[]int64](s, `SELECT array_agg(call_id) FROM (SELECT call_id FROM callq.call_open ORDER BY random() LIMIT 50) picked`)...)
		s.turn(d)
	}
	s.want(`SELECT count(*) = 100 FROM callq.call_open`)
	if got := one[int64](s, `SELECT count(*) FROM call_attempts WHERE queue = 'chat'`) + one[int64](s, `SELECT count(*) FROM callq.call_open WHERE queue = 'chat'`); got < 155 || got > 205 {
		t.Errorf("chat had %d calls made, want 30 and 30%% of 500", got)
	}
}

// A share whose calls cannot be made for another reason keeps nothing from others.
func TestSharesOfWhatCannotGo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*policy.Policy)
		sql    string
	}{
		"paused": {nil, `INSERT INTO callq.call_pauses (what, name, until, reason, at, by) VALUES ('queue', 'chat', 'infinity', '', now(), '')`},
		"outside its hours": {func(r *policy.Policy) {
			r.Queues[0].Hours = time.Now().Add(48*time.Hour).UTC().Format("Mon") + " 00:00-00:01 UTC"
		}, `SELECT`},
		"without a worker": {func(r *policy.Policy) { r.Queues[0].On = "elsewhere" }, `SELECT`},
		"another limit is full": {func(r *policy.Policy) {
			r.Limits = append(r.Limits, sliding("daily", 1, 24*time.Hour))
			r.Queues[0].Limits = append(r.Queues[0].Limits, "daily")
		}, `INSERT INTO callq.call_usage VALUES ('daily', '', now() + interval '1 h', 0, 1)`},
		"later": {nil, `UPDATE call_queue SET run_at = now() + interval '1 day' WHERE queue = 'chat'`},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			s.alive(1000)
			r := sharedRules(sliding("llm", 10, time.Hour), limit.Shares{"chat": 50})
			if c.change != nil {
				c.change(&r)
			}
			s.once(r)
			s.calls("chat", 20)
			s.calls("import", 20)
			s.exec(c.sql)
			s.once(r)
			if got := one[int64](s, `SELECT count(*) FROM callq.call_open WHERE queue = 'import'`); got != 10 {
				t.Errorf("%d imports are open, want 10", got)
			}
		})
	}
}

// In one queue, too, shares have their parts: of priorities, and of retries. Within them the order is as ever.
func TestSharesOfOneQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shares      limit.Shares
		insert      string
		part, calls string
	}{
		"priorities": {
			limit.Shares{"priority 8-9": 20},
			`INSERT INTO call_queue (queue, priority) SELECT 'import', i % 2 * 5 + 4 FROM generate_series(1, 400) i`,
			`q.priority = 9`, `10, 12, 14, 16`,
		},
		"retries behind": {
			limit.Shares{limit.Retries: 20},
			`INSERT INTO call_queue (queue, priority) SELECT 'import', 5 FROM generate_series(1, 400) i;
				UPDATE call_queue SET status = 'dispatched' WHERE id % 2 = 0; TRUNCATE callq.call_inbox;
				UPDATE call_queue SET status = CASE status WHEN 'new' THEN 'new' ELSE 'error' END, run_at = created_at - interval '1 s'`,
			`q.id % 2 = 0`, ``,
		},
		"retries in front": {
			limit.Shares{limit.Retries: 20},
			`INSERT INTO call_queue (queue, run_at) SELECT 'import', now() - interval '1 h' FROM generate_series(1, 200) i;
				UPDATE call_queue SET status = 'dispatched'; TRUNCATE callq.call_inbox; UPDATE call_queue SET status = 'error'; INSERT INTO call_queue (queue) SELECT 'import' FROM generate_series(1, 200) i`,
			`q.id <= 200`, ``,
		},
		"of many keys": {
			limit.Shares{limit.Retries: 20},
			`INSERT INTO call_queue (queue, key) SELECT 'import', 'k' || i % 50 FROM generate_series(1, 400) i;
				UPDATE call_queue SET status = 'dispatched' WHERE id > 200; UPDATE call_queue SET status = 'error' WHERE status = 'dispatched'`,
			`q.id > 200`, ``,
		},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			s.alive(1000)
			r := sharedRules(sliding("llm", 100, time.Hour), c.shares)
			s.publish(r)
			s.exec(`SET callq.repair = 'on'; ` + c.insert)
			s.once(r)
			s.want(`SELECT count(*) = 100 FROM callq.call_open`)
			s.openAbout(c.part, 20)
			s.want(`SELECT count(*) = 0 FROM call_queue a JOIN call_queue b ON b.key IS NOT DISTINCT FROM a.key AND (b.status, b.priority) = ('new', a.priority)
				WHERE a.status = 'dispatched' AND a.attempts = 1 AND a.failed_count = 0 AND a.id > b.id AND (a.id > 200) = (b.id > 200) AND a.id % 2 = b.id % 2`)
		})
	}
}

// Retries that wait when their share is made are of it, and those that wait when it goes are found, too.
func TestRetriesMove(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	l := sliding("llm", 50, time.Hour)
	r := sharedRules(l, nil)
	s.publish(r)
	s.exec(`SET callq.repair = 'on'; INSERT INTO call_queue (queue) SELECT 'import' FROM generate_series(1, 100) i; UPDATE call_queue SET status = 'dispatched'; UPDATE call_queue SET status = 'error';
		INSERT INTO call_queue (queue) SELECT 'import' FROM generate_series(1, 100) i`)
	s.once(r)
	s.want(`SELECT count(*) = 50 AND max(call_id) = 50 FROM callq.call_open`)
	s.exec(`DELETE FROM callq.call_open`)
	shared := sharedRules(l, limit.Shares{limit.Retries: 20})
	d := s.dispatcher(shared)
	s.publish(shared)
	for range 5 { // those that wait are filed anew in a moment
		s.turn(d)
		s.exec(`UPDATE callq.call_inbox SET at = now()`)
	}
	s.want(`SELECT count(*) = 50 FROM callq.call_open`)
	if got := one[int64](s, `SELECT count(*) FROM callq.call_open WHERE call_id <= 100`); got > 12 {
		t.Errorf("%d retries are open, want 10", got)
	}
	s.exec(`DELETE FROM callq.call_open`)
	s.publish(r)
	d = s.dispatcher(r)
	for range 5 {
		s.turn(d)
		s.exec(`UPDATE callq.call_inbox SET at = now()`)
		s.exec(`DELETE FROM callq.call_open`)
	}
	s.want(`SELECT count(*) = 0 FROM call_queue WHERE status IN ('new', 'error')`)
}

// By cost, a call that needs more than a share has at once is made once it has its turn: small ones of others do not take all that
// comes free.
func TestSharesOfLargeCalls(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	l := policy.Limit{Name: "llm", Rate: limit.Rate{Units: 100}, CountCost: true}
	r := sharedRules(l, limit.Shares{"chat": 30})
	d := s.dispatcher(r)
	s.publish(r)
	s.calls("import", 2000)
	s.turn(d)
	s.exec(`INSERT INTO call_queue (queue, cost) SELECT 'chat', 40 FROM generate_series(1, 20)`)
	for range 20 { // 10 units come free each time
		s.start(time.Minute)
		s.finish(one[[]int64](s, `SELECT array_agg(call_id) FROM (SELECT call_id FROM callq.call_open WHERE queue = 'import' ORDER BY call_id LIMIT 10) picked`)...)
		s.finish(one[[]int64](s, `SELECT coalesce(array_agg(call_id), '{-1}') FROM callq.call_open WHERE queue = 'chat' AND started_at IS NOT NULL`)...)
		s.turn(d)
	}
	made := one[int64](s, `SELECT count(*) FROM call_attempts WHERE queue = 'chat'`)
	if made < 2 || made > 12 {
		t.Errorf("%d large calls were made", made)
	}
}

// A producer is told when its call would start, with what waits in other queues of the limit: they take turns, or have their shares.
func TestBacklogOfSharedLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shares         limit.Shares
		chats, imports int
		want           float64 // minutes, for a chat
	}{
		"room":         {nil, 0, 5, 0},
		"alone":        {nil, 100, 0, 10},
		"by turns":     {nil, 20, 1000, 3.2},
		"few others":   {nil, 100, 30, 13},
		"a share":      {limit.Shares{"chat": 25}, 20, 1000, 8},
		"little there": {limit.Shares{"chat": 25}, 100, 30, 13},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			s.alive(1000)
			r := sharedRules(sliding("llm", 10, time.Minute), c.shares)
			s.once(r)
			s.calls("chat", c.chats)
			s.calls("import", c.imports)
			s.once(r)
			client, err := callqueue.New(s.pool)
			if err != nil {
				t.Fatal(err)
			}
			b, err := client.Backlog(t.Context(), "chat")
			if err != nil || b.StartsAt.IsZero() {
				t.Fatalf("%+v, %v", b, err)
			}
			if in := time.Until(b.StartsAt).Minutes(); in < c.want-1.1 || in > c.want+1.1 {
				t.Errorf("%+v: in %.1f minutes, want %.1f", b, in, c.want)
			}
		})
	}
}

// Of a limit that has room, something is claimed, whoever's turn is first: where a dispatcher does not know yet what other queues want,
// and where the turns of two limits are of different shares.
func TestSharesTakeWhatThereIs(t *testing.T) {
	t.Parallel()
	one := func(name string) policy.Limit {
		return policy.Limit{
			Name: name, Rate: limit.Rate{Units: 1},
			Shares: limit.Shares{"priority 0-3": 30, limit.Retries: 20, limit.Rest: 50},
		}
	}
	for name, c := range map[string]struct {
		rules policy.Policy
		sql   string
	}{
		"others want less than they might": {
			policy.Policy{Limits: []policy.Limit{one("llm")}, Queues: []policy.Queue{queue("chat", "llm"), queue("import", "llm")}},
			`INSERT INTO call_queue (queue, priority) SELECT q, p FROM (VALUES ('chat', 7), ('chat', 1), ('import', 1)) v (q, p), generate_series(1, 40)`,
		},
		"two limits": {
			policy.Policy{Limits: []policy.Limit{one("llm"), one("sockets")}, Queues: []policy.Queue{queue("chat", "llm", "sockets")}},
			`INSERT INTO call_queue (queue, priority) SELECT 'chat', p FROM (VALUES (7), (1)) v (p), generate_series(1, 40)`,
		},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			s.alive(1000)
			s.publish(c.rules)
			s.exec(c.sql)
			for range 20 { // the first turn is by chance
				s.turn(s.dispatcher(c.rules))
				s.want(`SELECT count(*) = 1 FROM callq.call_open`)
				s.exec(`UPDATE call_queue SET status = 'cancelled', finished_at = now() WHERE id IN (SELECT call_id FROM callq.call_open)`)
				s.exec(`DELETE FROM callq.call_open`)
			}
		})
	}
}
