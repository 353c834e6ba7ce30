package dispatcher_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
	"github.com/hibiken/asynq"
)

func TestUnstartedGoesBack(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 2, time.Hour))
	s.calls("default", 5)
	s.once(r)
	s.want(`SELECT count(*) = 2 FROM callq.call_open WHERE call_id IN (1, 2)`)

	s.exec(`UPDATE callq.call_open SET start_by = clock_timestamp() - interval '1 ms' WHERE call_id = 1`)
	s.once(r)
	s.want(`SELECT count(*) = 2 FROM callq.call_open WHERE attempt = 1`) // while no worker lives they stay

	s.exec(`UPDATE call_queue SET priority = 9 WHERE id = 1`) // so that the unit goes to another call
	s.alive(10)
	s.once(r)
	s.want(`SELECT status = 'new' AND attempts = 1 AND failed_count = 0 AND finished_at IS NULL FROM call_queue WHERE id = 1`)
	s.want(`SELECT outcome = 'not_sent' AND charged = '[]' AND arrived_by IS NULL AND started_at IS NULL
		FROM call_attempts WHERE call_id = 1 AND attempt = 1`)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{2,3}' FROM callq.call_open`) // refunded, and given out again
	s.want(`SELECT count(*) = 0 FROM callq.call_usage`)
	s.verify()
}

func TestLost(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, onLost, call string
		status             string
		again              bool // it may be claimed later
	}{
		{"retried", "retry", `failed_count = 0`, "error", true},
		{"retried until max_attempts of the queue", "retry", `failed_count = 2`, "failed", false},
		{"retried until max_attempts of the call", "retry", `max_attempts = 1`, "failed", false},
		{"retried beyond the queue's, for the call allows more", "retry", `failed_count = 2, max_attempts = 4`, "error", true},
		{"failed, where the queue says so", "fail", `failed_count = 0`, "failed", false},
	}
	for _, c := range cases {
		parallel(t, c.name, func(_ *testing.T, s *system) {
			r := rules(sliding("api", 2, time.Hour))
			r.Queues[0].OnLost = c.onLost
			s.calls("default", 1)
			s.exec(`UPDATE call_queue SET ` + c.call)
			failed := one[int](s, `SELECT failed_count FROM call_queue`)
			s.once(r)
			s.start(30 * time.Minute)
			s.once(r)
			s.want(`SELECT count(*) = 1 FROM callq.call_open`) // before its deadline it may still end
			s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)
			s.calls("default", 5)
			s.once(r)
			s.want(`SELECT status = $1 AND failed_count = $2 AND (failed_at IS NOT NULL) = ($1 = 'failed')
				AND error_message LIKE '%worker was lost%' FROM call_queue WHERE id = 1`, c.status, failed+1)
			s.want(`SELECT (CASE WHEN status IN ('new', 'error') THEN run_at END > finished_at) IS NOT DISTINCT FROM nullif($1, false) FROM call_queue WHERE id = 1`, c.again)
			s.want(`SELECT outcome = 'lost' AND charged->0->>'limit' = 'api' AND arrived_by = started_at + interval '10 hours 5 s' AND proof = 'assumed' FROM call_attempts`)
			s.want(`SELECT sum(used) = 1 FROM callq.call_usage`)
			s.want(`SELECT count(*) = 1 FROM callq.call_open`) // the second unit; the first stays used
		})
	}
}

// A limit anchored at the finish counts a lost attempt until its deadline, what TCP sends again after that, and slack.
func TestLostAnchors(t *testing.T) {
	t.Parallel()
	for anchor, until := range map[limit.Anchor]string{
		limit.AnchorStart:  `started_at + interval '200 ms' + interval '5 s' + interval '300 ms'`,
		limit.AnchorFinish: `started_at + interval '6 s' + interval '5 s' + interval '300 ms'`,
	} {
		parallel(t, string(anchor), func(_ *testing.T, s *system) {
			api := sliding("api", 2, time.Hour)
			api.SendWithin, api.Slack = 200*time.Millisecond, 300*time.Millisecond
			api.Anchor = anchor
			r := rules(api)
			s.calls("default", 1)
			s.once(r)
			s.start(5 * time.Second)
			s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 min', deadline = deadline - interval '1 min'`)
			s.once(r)
			s.want(`SELECT arrived_by = ` + until + ` FROM call_attempts`)
		})
	}
}

func TestExpire(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (queue, status, expires_at, unique_key) VALUES
		('not in the rules', 'new', clock_timestamp(), 'u'),
		('not in the rules', 'error', '-infinity', NULL),
		('not in the rules', 'new', clock_timestamp() + interval '1 hour', NULL),
		('not in the rules', 'new', 'infinity', NULL),
		('not in the rules', 'cancelled', clock_timestamp(), NULL)`)
	s.once(rules())
	s.want(`SELECT array_agg(id ORDER BY id) = '{1,2}' FROM call_queue WHERE status = 'failed' AND failed_at IS NOT NULL
		AND finished_at IS NOT NULL AND attempts = 0 AND unique_key IS NULL AND error_message LIKE 'expired: not sent by%'`)
	s.want(`SELECT count(*) = 2 FROM call_queue WHERE status = 'new'`)
	s.verify()
}

//callq:guarantee 3
func TestResend(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.still()
	r := rules(sliding("api", 3, time.Hour))
	s.calls("default", 3)
	s.once(r)
	first := s.pending("http")
	if len(first) != 3 {
		t.Fatalf("messages %v, want 3", first)
	}
	const old = `UPDATE callq.call_open SET handed_at = clock_timestamp() - interval '5001 ms'`

	s.exec(old)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM callq.call_open WHERE redeliveries = 0`) // all are pending

	s.redis.FlushDB(t.Context())
	s.exec(`UPDATE callq.call_open SET handed_at = clock_timestamp() - interval '4 s'`)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM callq.call_open WHERE redeliveries = 0`) // not yet

	s.exec(old)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM callq.call_open WHERE redeliveries = 1 AND attempt = 1 AND handed_at > clock_timestamp() - interval '5 s'`)
	s.want(`SELECT bool_and(attempts = 1) FROM call_queue`)
	again := s.pending("http")
	for i, id := range first {
		first[i] = strings.TrimSuffix(id, "-0") + "-1"
	}
	if fmt.Sprint(sorted(again)) != fmt.Sprint(sorted(first)) {
		t.Errorf("messages %v, want the same with the next redeliveries number: %v", again, first)
	}
	s.once(r)
	if more := s.pending("http"); len(more) != 3 {
		t.Errorf("a sweep at once sent again: %v", more)
	}
	s.verify()
}

// Two dispatchers that find the same lost messages send each once, and none while somebody holds its attempts.
//
//callq:guarantee 12
func TestResendRace(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.calls("default", 3)
	s.once(rules())
	s.redis.FlushDB(t.Context())
	s.exec(`UPDATE callq.call_open SET handed_at = clock_timestamp() - interval '6 s'`)
	tx := s.hold(`SELECT FROM callq.call_open FOR UPDATE`)
	both := []*dispatcher.Dispatcher{s.another(rules()), s.another(rules())}
	atOnce(t, both, (*dispatcher.Dispatcher).OnceUnfrozen) // no sweep waits for what somebody holds
	s.want(`SELECT count(*) = 3 FROM callq.call_open WHERE redeliveries = 0`)
	s.release(tx)
	atOnce(t, both, (*dispatcher.Dispatcher).OnceUnfrozen)
	s.want(`SELECT count(*) = 3 FROM callq.call_open WHERE redeliveries = 1`)
	if ids := s.pending("http"); len(ids) != 3 {
		t.Errorf("messages %v, want 3", ids)
	}
}

// Whatever has become of the first message, each attempt runs once, also when both arrive; and
// where several tasks share a pool, none is forgotten.
func TestResentRunsOnce(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		find bool // the lost messages turn up later
	}{
		{"flushed", false},
		{"flushed, and back later", true},
	}
	for _, c := range cases {
		parallel(t, c.name, func(t *testing.T, s *system) {
			const n = 12
			names := []string{"http", "one", "two"}
			pool := handoff.Pool(names, nil)
			s.aliveIn(pool, n, names...)
			s.exec(`INSERT INTO call_queue (task) SELECT CASE WHEN i % 2 = 0 THEN 'one' ELSE 'two' END FROM generate_series(1, $1) i`, n)
			r := rules()
			r.Queues[0].Timeout = time.Minute
			s.once(r)
			asynqQueue, inspector := s.broker().Queue(pool), asynq.NewInspectorFromRedisClient(s.redis)
			lost, err := inspector.ListPendingTasks(asynqQueue)
			if err != nil || len(lost) == 0 {
				t.Fatalf("Asynq tasks %v (%v)", lost, err)
			}
			s.redis.FlushDB(t.Context())
			s.exec(`UPDATE callq.call_open SET handed_at = clock_timestamp() - interval '6 s'`)
			s.once(r)
			s.want(`SELECT count(*) = $1 FROM callq.call_open WHERE redeliveries = 1`, n)
			if c.find {
				client := asynq.NewClientFromRedisClient(s.redis)
				for _, l := range lost {
					if _, err := client.Enqueue(asynq.NewTask(l.Type, l.Payload), asynq.Queue(asynqQueue), asynq.TaskID(l.ID)); err != nil {
						t.Fatal(err)
					}
				}
			}
			w := s.tasks(8, &tasks.HTTPConfig{})
			var mu sync.Mutex
			ran := map[int64]int{}
			count := func(_ context.Context, call *tasks.Call) error {
				mu.Lock()
				defer mu.Unlock()
				ran[call.ID]++
				return nil
			}
			w.Handle("one", count)
			w.Handle("two", count)
			s.run(w.Run)
			s.eventually(`SELECT count(*) = $1 FROM call_queue WHERE status = 'done' AND attempts = 1`, n)
			for len(s.pending(pool)) > 0 {
				s.eventually(`SELECT true`)
			}
			mu.Lock()
			defer mu.Unlock()
			for id, times := range ran {
				if times != 1 {
					t.Errorf("call %d ran %d times", id, times)
				}
			}
			s.verify()
		})
	}
}

// Attempts whose pool has gone are handed to one that lives and handles their task.
func TestResendToAnotherPool(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.aliveIn("gone", 8, "one", "two")
	s.exec(`INSERT INTO call_queue (task) VALUES ('one'), ('two'), ('one'), ('two')`)
	s.once(rules())
	s.want(`SELECT count(*) = 4 FROM callq.call_open WHERE pool = 'gone'`)
	s.exec(`DELETE FROM callq.call_workers`)
	s.aliveIn("first", 8, "one")
	s.aliveIn("second", 8, "two")
	s.exec(`UPDATE callq.call_open SET handed_at = clock_timestamp() - interval '6 s'`)
	s.once(rules())
	s.want(`SELECT count(*) = 4 FROM callq.call_open WHERE pool = CASE task WHEN 'one' THEN 'first' ELSE 'second' END AND redeliveries = 1`)
	if len(s.pending("first")) == 0 || len(s.pending("second")) == 0 {
		t.Error("nothing was sent to the pools that live")
	}
}

//callq:guarantee 1
func TestOlderEpoch(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	api := sliding("api", 4, time.Hour)
	api.SendWithin, api.Slack, api.Anchor = 200*time.Millisecond, 300*time.Millisecond, limit.AnchorStart
	r := rules(api)
	s.calls("default", 2)
	s.once(r)
	s.start(time.Hour)
	s.calls("default", 1)
	s.once(r)
	s.want(`SELECT count(*) = 3 AND count(started_at) = 2 FROM callq.call_open`)
	// As if another server had given them out: two started a while ago, one has not.
	s.exec(`UPDATE callq.call_open SET epoch = 'older', claimed_at = claimed_at - interval '2 h', started_at = started_at - interval '2 h',
		deadline = deadline - interval '2 h'`)
	s.exec(`UPDATE callq.call_open SET deadline = clock_timestamp() + interval '1 hour' WHERE call_id = 2`)
	s.exec(`UPDATE callq.call_limits SET epoch = 'older'`)
	s.calls("default", 9)
	before := one[time.Time](s, `SELECT clock_timestamp()`)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`) // closed, and nothing claimed
	s.want(`SELECT count(*) = 3 AND bool_and(outcome = 'lost' AND CASE WHEN started_at IS NULL
			THEN arrived_by BETWEEN $1::timestamptz + interval '300 ms' AND clock_timestamp() + interval '300 ms'
			ELSE arrived_by = started_at + interval '5500 ms' END) FROM call_attempts`, before)
	s.want(`SELECT sum(used) = 3 FROM callq.call_usage`)
	s.want(`SELECT epoch = callq.epoch() AND missing_until BETWEEN $1::timestamptz + interval '6200 ms' AND clock_timestamp() + interval '6200 ms'
		FROM callq.call_limits`, before)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_limits SET missing_until = NULL`) // as if that could count no more
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM callq.call_open`) // what may have started there just now still counts
	s.verifyLongAgo()
}

// A handler of one's own that an older server started may send until its deadline.
func TestOlderEpochAnchoredAtTheFinish(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.aliveIn("own", 4, "own")
	s.exec(`INSERT INTO call_queue (task) VALUES ('own')`)
	r := rules(sliding("api", 4, time.Second))
	s.once(r)
	s.start(time.Hour)
	s.exec(`UPDATE callq.call_open SET epoch = 'older'`)
	deadline := one[time.Time](s, `SELECT deadline FROM callq.call_open`)
	s.once(r)
	s.want(`SELECT arrived_by >= $1 FROM call_attempts`, deadline)
}

// One whose claim or start never reached this server may send until its queue's timeout: the limit
// stays shut that much longer, unless it is anchored at the start.
func TestNewEpochShutsForTheTimeout(t *testing.T) {
	t.Parallel()
	for anchor, longer := range map[limit.Anchor]time.Duration{"": 10, limit.AnchorFinish: 10, limit.AnchorStart: 5} {
		s := newSystem(t)
		api := sliding("api", 4, time.Second)
		api.Anchor = anchor
		r := rules(api) // a timeout of 5 s
		s.publish(r)
		s.exec(`UPDATE callq.call_limits SET epoch = 'older'`)
		s.calls("default", 1)
		before := one[time.Time](s, `SELECT clock_timestamp()`)
		s.once(r)
		s.want(`SELECT missing_until - send_within - slack - $2::interval BETWEEN $1 AND clock_timestamp() FROM callq.call_limits`,
			before, longer*time.Second+limit.AheadMost+limit.RunLate)
	}
}

// A limit that is published, or given a longer window, after a failover is shut for as long as if it had
// been there before; one of a database that has always been the same is not shut at all.
//
//callq:guarantee 1
func TestLimitPublishedAfterAFailover(t *testing.T) {
	t.Parallel()
	const shutSQL = `SELECT known_at IS NULL AND missing_until - send_within - slack - interval '10.7 s' BETWEEN $1 AND clock_timestamp() FROM callq.call_limits`
	const failover = `UPDATE callq.call_epochs SET epoch = 'older'`
	now := func(s *system) time.Time { return one[time.Time](s, `SELECT clock_timestamp()`) }
	api := rules(sliding("api", 4, time.Second)) // a timeout of 5 s
	parallel(t, "before the first tick", func(_ *testing.T, s *system) {
		s.once(rules())
		s.exec(failover)
		before := now(s)
		s.calls("default", 1)
		s.once(api)
		s.want(shutSQL, before)
		s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	})
	parallel(t, "after it", func(t *testing.T, s *system) {
		d := s.dispatcher(rules())
		s.turn(d)
		s.exec(failover)
		before := now(s)
		s.once(rules())
		after := now(s)
		s.publish(api)
		s.want(shutSQL, before)
		s.want(`SELECT seen_at BETWEEN $1 AND $2 FROM callq.call_epochs WHERE epoch = callq.epoch()`, before, after)
	})
	parallel(t, "given a longer window", func(t *testing.T, s *system) {
		s.publish(api)
		s.exec(failover)
		s.exec(`UPDATE callq.call_limits SET epoch = 'older'`)
		before := now(s)
		s.calls("default", 1)
		s.once(api)
		s.want(shutSQL, before)
		s.set(4, time.Hour)
		s.want(shutSQL, before)
	})
	parallel(t, "long after it", func(_ *testing.T, s *system) {
		s.once(rules())
		s.exec(failover)
		s.once(rules())
		s.exec(`UPDATE callq.call_epochs SET seen_at = seen_at - interval '13 s'`)
		s.calls("default", 1)
		s.once(api)
		s.want(`SELECT count(*) = 1 FROM callq.call_open`)
	})
	parallel(t, "in a database that has always been the same", func(_ *testing.T, s *system) {
		s.calls("default", 1)
		s.once(api)
		s.want(`SELECT count(*) = 1 FROM callq.call_open`)
		s.want(`SELECT missing_until IS NULL FROM callq.call_limits`)
	})
}

// While a sweep has not reached an open attempt of an older epoch, its units are not given out
// again: it will be charged from then on.
func TestOlderEpochIsOccupiedUntilSwept(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const n = 501 // one more than a pass sweeps
	s.alive(n)
	r := rules(sliding("api", n, time.Hour))
	s.calls("default", n)
	s.once(r)
	s.exec(`UPDATE callq.call_open SET epoch = 'older', claimed_at = claimed_at - interval '2 hours'`)
	s.calls("default", 10)
	s.once(r)
	s.want(`SELECT count(*) = 1 FROM callq.call_open WHERE epoch = 'older'`)
	if got := s.used(); got > n {
		t.Errorf("%d units are given out, want at most %d", got, n)
	}
}
