package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// A limit that is given a longer window and another queue stays shut until all that was open has
// closed; then it has counted what its queues sent within the new window, and nothing twice.
//
//callq:guarantee 7
func TestLimitIsCountedFromTheLedger(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	other := queue("other")
	before := rules(sliding("api", 20, time.Minute))
	before.Queues = append(before.Queues, other)
	s.publish(before)
	s.calls("default", 6)
	s.calls("other", 4)
	s.once(before)
	s.start(time.Hour)
	s.finish(1, 2, 3, 4, 5, 7, 8, 9) // 6 and 10 run on
	// Call 1 was long ago; calls 2 and 7 within the new window, not within the old one.
	s.exec(`UPDATE call_attempts SET arrived_by = arrived_by - interval '2 hours', started_at = started_at - interval '2 hours' WHERE call_id = 1`)
	s.exec(`UPDATE call_attempts SET arrived_by = arrived_by - interval '30 min', started_at = started_at - interval '30 min' WHERE call_id IN (2, 7)`)
	s.exec(`UPDATE call_attempts SET charged = jsonb_set(charged, '{0,until}', to_jsonb(arrived_by)) WHERE call_id IN (1, 2)`)
	s.exec(`DELETE FROM callq.call_usage WHERE ctid = (SELECT ctid FROM callq.call_usage LIMIT 1)`) // usage does not reach back

	after := rules(sliding("api", 20, time.Hour))
	other.Limits = []string{"api"}
	after.Queues = append(after.Queues, other)
	s.publish(after)
	s.want(`SELECT complete_since IS NULL FROM callq.call_limits`)
	s.calls("default", 40)
	s.once(after)
	s.want(`SELECT complete_since IS NULL FROM callq.call_limits`) // 10 is open and not charged to the limit
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)
	s.finish(10)
	s.once(after)
	s.want(`SELECT complete_since > applied_at FROM callq.call_limits`)
	// Counted: 2 to 5, 7 to 10. Call 6 is still open.
	s.want(`SELECT sum(used) = 8 FROM callq.call_usage`)
	s.want(`SELECT count(*) = 20 - 8 FROM callq.call_open WHERE limits = '{api}'`)
	s.finish(6)
	s.want(`SELECT sum(used) = 9 FROM callq.call_usage`)
	s.verifyLongAgo()
	// Each unit in the bucket of its own time, which ends after it.
	s.want(`SELECT sum(used) = 2 FROM callq.call_usage u, call_attempts a
		WHERE a.call_id = 7 AND u.bucket > a.arrived_by AND u.bucket < a.arrived_by + interval '20 s'`)
}

// Units that a queue used before it left the limit still count.
func TestLimitCountsQueuesThatLeft(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 20, time.Minute))
	r.Queues = append(r.Queues, queue("other", "api"))
	s.calls("default", 2)
	s.calls("other", 3)
	s.once(r)
	s.start(time.Hour)
	s.finish()
	r.Queues[1].Limits = nil
	r.Limits[0].Rate.Window = time.Hour
	s.once(r)
	s.want(`SELECT sum(used) = 5 AND bool_and(shard = 0) FROM callq.call_usage`)
	s.verify()
}

// Where retention may have cut the ledger within the window, what is missing counts as used, until it no longer can.
//
//callq:guarantee 1 7
func TestLimitBehindTheMark(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 20, time.Hour))
	s.calls("default", 1)
	s.exec(`INSERT INTO callq.call_meta (name, at) VALUES ('ledger', clock_timestamp() - interval '59 min')`)
	s.once(r)
	s.want(`SELECT complete_since IS NOT NULL AND (SELECT count(*) = 0 FROM callq.call_open) FROM callq.call_limits`)
	s.exec(`UPDATE callq.call_limits SET missing_until = missing_until - interval '2 min'`)
	s.once(r)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`)
}

// A fixed window needs only what began with it: what retention removed of the months before is no matter.
func TestFixedWindowBehindTheMark(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.calls("default", 1)
	s.exec(`INSERT INTO callq.call_meta (name, at) VALUES ('ledger', date_trunc('day', clock_timestamp(), 'UTC') - interval '1 hour')`)
	r := rules(shaped(t, "api", "20/1d", limit.FixedWindow, 0, ""))
	s.once(r)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_limits SET missing_until = clock_timestamp()`)
	s.calls("default", 1)
	s.once(r)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`)
}

// A limit that is taken away and comes back counts what its queue sent in between.
func TestLimitComesBack(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	with, without := rules(sliding("api", 5, time.Hour)), rules()
	s.calls("default", 4)
	s.once(with)
	s.start(time.Hour, 1, 2)
	s.finish(1)
	s.publish(without)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`) // 3 and 4 were recalled, 2 runs
	s.want(`SELECT queues = '{}' AND (SELECT limits = '{}' FROM callq.call_queues) FROM callq.call_limits`)
	s.once(without)
	s.start(time.Hour, 3)
	s.finish(2, 3) // charged to the limit of its claim; to none
	s.want(`SELECT sum(used) = 2 FROM callq.call_usage`)
	s.calls("default", 10)
	s.once(with) // 4 is open under no limit, and recalled
	s.want(`SELECT sum(used) = 3 FROM callq.call_usage`)
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)
	s.verify()
}

// A queue that leaves the rules keeps its calls waiting, and gives back what had not started.
func TestQueueLeaves(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 5, time.Hour))
	both := r
	both.Queues = append([]policy.Queue{queue("free"), queue("other", "api")}, r.Queues...)
	s.calls("other", 3)
	s.exec(`INSERT INTO call_queue (queue, run_at) VALUES ('free', now())`)
	s.once(both)
	s.want(`SELECT count(*) = 4 FROM callq.call_open`)
	s.start(time.Hour, 1)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM call_queue WHERE status = 'new'`)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`)
	s.calls("default", 9)
	s.once(r)
	s.want(`SELECT count(*) = 5 FROM callq.call_open`) // one of other's, and what it left
	s.finish(1)
	s.want(`SELECT status = 'done' FROM call_queue WHERE id = 1`)
	s.once(both)
	s.want(`SELECT count(*) = 5 AND count(*) FILTER (WHERE queue = 'free') = 1 FROM callq.call_open`) // 4 of 5 units, for call 1 has used one
	s.verify()
}

// A change shuts a limit only where its usage may not reach back far enough.
func TestWhatShutsALimit(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for _, c := range []struct {
		name   string
		change func(api *policy.Limit, other *policy.Queue)
		shut   bool
	}{
		{"a higher rate", func(api *policy.Limit, _ *policy.Queue) { api.Rate.Units++ }, false},
		{"a lower rate", func(api *policy.Limit, _ *policy.Queue) { api.Rate.Units-- }, false},
		{"a shorter window", func(api *policy.Limit, _ *policy.Queue) { api.Rate.Window-- }, false},
		{"more slack", func(api *policy.Limit, _ *policy.Queue) { api.Slack = time.Minute }, false},
		{"a longer window", func(api *policy.Limit, _ *policy.Queue) { api.Rate.Window += time.Second }, true},
		{"another queue", func(_ *policy.Limit, other *policy.Queue) { other.Limits = []string{"api"} }, true},
		{"another timeout of a queue", func(_ *policy.Limit, other *policy.Queue) { other.Timeout++ }, false},
	} {
		r := rules(sliding("api", 5, time.Hour))
		r.Queues = append(r.Queues, queue("other"))
		s.once(r)
		s.want(`SELECT complete_since IS NOT NULL FROM callq.call_limits`)
		c.change(&r.Limits[0], &r.Queues[1])
		s.publish(r)
		if shut := one[bool](s, `SELECT complete_since IS NULL FROM callq.call_limits`); shut != c.shut {
			t.Errorf("%s: the limit is shut: %t, want %t", c.name, shut, c.shut)
		}
	}
}
