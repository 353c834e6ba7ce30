package dispatcher_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
)

// Between ticks a dispatcher looks again by itself: these have one tick, at their start, so that
// what is made afterwards was found by a look.
func TestLooksBetweenTicks(t *testing.T) {
	t.Parallel()
	calls := func(n int) func() []callqueue.Call {
		return func() []callqueue.Call { return slices.Repeat([]callqueue.Call{{Task: "ok"}}, n) }
	}
	runAt := func(offsets ...time.Duration) func() []callqueue.Call {
		return func() []callqueue.Call {
			list := calls(len(offsets))()
			for i := range list {
				list[i].RunAt = time.Now().Add(offsets[i])
			}
			return list
		}
	}
	for _, c := range []struct {
		name  string
		rule  policy.Limit
		calls func() []callqueue.Call
	}{
		{"when a client inserts", sliding("api", 100, time.Hour), calls(1)},
		{"when a call falls due", sliding("api", 100, time.Hour), runAt(0, 400*time.Millisecond, 800*time.Millisecond)}, // the look that finds the second must see when the third falls due
		{"when units come free", sliding("api", 2, 300*time.Millisecond), calls(5)},
		{"when slots come free", sliding("api", 1000, time.Hour), calls(60)},
	} {
		parallel(t, c.name, func(t *testing.T, s *system) {
			w := s.tasks(2, nil)
			w.Handle("ok", func(context.Context, *tasks.Call) error { return nil })
			s.run(w.Run)
			s.eventually(`SELECT count(*) = 1 FROM callq.call_workers`)
			s.run(s.dispatcher(rules(c.rule), seldom).Sightless().Run)
			s.eventually(`SELECT count(*) = 1 FROM callq.call_limits WHERE complete_since IS NOT NULL`)
			client, err := callqueue.New(s.pool)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.InsertMany(t.Context(), c.calls()); err != nil {
				t.Fatal(err)
			}
			s.eventually(`SELECT bool_and(status = 'done') FROM call_queue`)
			s.verify()
		})
	}
}

// A plain INSERT is seen at once, and so is one that tells nobody, because another just has, and is committed later: the next
// tick is an hour away here, the next poll a minute.
func TestPlainInsertIsSeen(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(20)
	s.run(s.dispatcher(rules(sliding("api", 100, time.Hour)), seldom).Run)
	s.eventually(`SELECT count(*) = 1 FROM callq.call_limits WHERE complete_since IS NOT NULL`)
	s.exec(`DO $$ BEGIN INSERT INTO call_queue DEFAULT VALUES; PERFORM pg_sleep(1); END $$`) // nobody polls any more
	s.eventually(`SELECT count(*) = 1 FROM callq.call_open`)
	s.exec(`INSERT INTO call_queue DEFAULT VALUES`)
	s.exec(`DO $$ BEGIN
		PERFORM setval('callq.call_wake_seq', (date_part('epoch', clock_timestamp()) * 1000)::bigint); -- another woke just now
		INSERT INTO call_queue DEFAULT VALUES;
		PERFORM pg_sleep(0.2);
	END $$`)
	s.eventually(`SELECT count(*) = 3 FROM callq.call_open`)
	s.want(`SELECT bool_and(claimed_at < created_at + interval '20 s') FROM callq.call_open JOIN call_queue ON id = call_id`)
}

// Transactions that insert and roll back, over and over, take no wake from one that commits.
func TestRolledBackInsertsTakeNoWake(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(20)
	s.run(s.dispatcher(rules(sliding("api", 100, time.Hour)), seldom).Run)
	s.eventually(`SELECT count(*) = 1 FROM callq.call_limits WHERE complete_since IS NOT NULL`)
	s.exec(`SELECT pg_sleep(2.5)`) // nobody polls any more
	ctx, stop := context.WithCancel(t.Context())
	var rollingBack sync.WaitGroup
	defer rollingBack.Wait()
	defer stop()
	begun := make(chan struct{}, 1)
	rollingBack.Go(func() {
		for ctx.Err() == nil {
			tx, err := s.owner.Begin(ctx)
			if err != nil {
				return
			}
			_, _ = tx.Exec(ctx, `INSERT INTO call_queue DEFAULT VALUES`)
			_ = tx.Rollback(context.WithoutCancel(ctx))
			select {
			case begun <- struct{}{}:
			default:
			}
		}
	})
	for n := range 5 {
		<-begun
		s.exec(`INSERT INTO call_queue DEFAULT VALUES`)
		s.eventually(`SELECT count(*) = $1 FROM callq.call_open`, n+1)
		s.exec(`SELECT pg_sleep(0.1)`)
	}
	s.want(`SELECT bool_and(claimed_at < created_at + interval '20 s') FROM callq.call_open JOIN call_queue ON id = call_id`)
}

// Units that come back early are given out at once, though their limit could not have had room yet.
func TestUnitsThatComeBackEarly(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(t *testing.T, s *system){
		"by cancelling what was handed over": func(_ *testing.T, s *system) { s.cancel(1) },
		"by setting a higher rate": func(t *testing.T, s *system) {
			s.set(3, time.Hour)
		},
		"by a worker that sent nothing": func(t *testing.T, s *system) {
			w := s.tasks(20, &tasks.HTTPConfig{})
			s.run(w.Run)
		},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			s.alive(20)
			s.exec(`INSERT INTO call_queue (call_data) SELECT '{"url": "http://127.0.0.1:1"}' FROM generate_series(1, 3)`)
			s.run(s.dispatcher(rules(sliding("api", 2, time.Hour)), seldom).Run)
			s.eventually(`SELECT count(*) = 2 FROM callq.call_open`)
			free(t, s)
			s.eventually(`SELECT attempts > 0 FROM call_queue WHERE id = 3`)
		})
	}
}

// So is what was kept by a call that waited for more units than there were, once that is cancelled.
func TestCancellingACallThatHeldUpOthers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(byCost("api", 10, time.Hour))
	s.exec(`INSERT INTO call_queue (cost) VALUES (5), (8), (5)`)
	s.run(s.dispatcher(r, seldom).Run)
	s.eventually(`SELECT count(*) = 1 FROM callq.call_open`)
	s.cancel(2)
	s.eventually(`SELECT array_agg(call_id ORDER BY call_id) = '{1,3}' FROM callq.call_open`)
}

// A key that is paused while its limit is full keeps nobody busy.
func TestPausedKeyOfAFullLimit(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(policy.Limit{Name: "api", Rate: limit.Rate{Units: 1}})
	s.once(r)
	s.calls("default", 2)
	s.once(r)
	s.exec(`INSERT INTO call_queue (key) VALUES ('k')`)
	s.pause(ledger.Paused{What: "queue", Name: "default", Key: "k", Author: ledger.Author{Reason: "test", By: "test"}})
	d := s.dispatcher(r)
	s.tick(d) // takes the call in line
	s.tick(d)
	for range 20 { // a poll that does not look back to the beginning begins another soon, though not at once
		next, err := d.Step(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if next > 20*time.Millisecond {
			return
		}
	}
	t.Error("it polls again and again")
}

// A dispatcher that sees by the claims' numbers that another has claimed leaves claims to it for a while, whatever arrives. Then
// it goes on, if the other no longer does. One that finds a lock held draws no number. A tick claims whoever else does, but not
// over and over.
func TestStandsBy(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	now := time.Now()
	r := rules(sliding("api", 100, time.Hour))
	watched := func(c *dispatcher.Config) { c.Now = func() time.Time { return now } }
	other, d := s.dispatcher(r, watched), s.dispatcher(r, watched)
	s.turn(d)
	s.turn(other)
	claims := func(by *dispatcher.Dispatcher, want int) {
		t.Helper()
		s.calls("default", 1)
		s.poll(by)
		s.want(`SELECT count(*) = $1 FROM callq.call_open`, want)
	}
	claims(d, 1)
	for _, held := range []string{"callq.call_queues", "callq.call_limits", "callq.call_locks"} {
		tx := s.hold(`SELECT FROM ` + held + ` FOR UPDATE`)
		claims(other, 1)
		s.release(tx)
	}
	claims(d, 5)
	claims(other, 5)
	s.tick(other)
	s.want(`SELECT count(*) = 6 FROM callq.call_open`)
	claims(d, 6)
	now = now.Add(200 * time.Millisecond)
	claims(d, 6)
	now = now.Add(50 * time.Millisecond)
	claims(d, 9)
	claims(other, 9)
	s.tick(other)
	s.want(`SELECT count(*) = 9 FROM callq.call_open`)
	now = now.Add(5 * time.Second)
	claims(d, 11)
	claims(other, 11)
	s.tick(other)
	s.want(`SELECT count(*) = 12 FROM callq.call_open`)
}

// A dispatcher that had nothing to claim sees all the same that Postgres's clock was set forward.
func TestIdleDispatcherSeesTheClockSet(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	monotonic := time.Now()
	d := s.clocked(&monotonic)
	s.exec(`INSERT INTO callq.call_usage (limit_name, key, bucket, shard, used) VALUES ('api', '', clock_timestamp() - interval '70 min', 1, 1)`)
	s.calls("default", 1)
	monotonic = monotonic.Add(-30 * time.Minute) // so much Postgres's clock has gained
	s.tick(d)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
}

// So does one that counts what a limit has used from the ledger.
func TestOpeningReachesBackBehindAStepOfTheClock(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	monotonic := time.Now()
	d := s.clocked(&monotonic)
	s.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
		SELECT 9, 1, 1, at, at, at, at, 'done', 'default', 'http', '', '[]' FROM (SELECT clock_timestamp() - interval '70 min' AS at) a`)
	s.exec(`UPDATE callq.call_limits SET complete_since = NULL`)
	s.calls("default", 1)
	monotonic = monotonic.Add(-30 * time.Minute)
	s.tick(d)
	s.want(`SELECT complete_since IS NOT NULL FROM callq.call_limits`)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
}

// clocked is a dispatcher with a clock of the test's own, once its limit is open.
func (s *system) clocked(now *time.Time) *dispatcher.Dispatcher {
	s.t.Helper()
	d := s.dispatcher(rules(sliding("api", 1, time.Hour)), func(c *dispatcher.Config) { c.Now = func() time.Time { return *now } })
	s.turn(d)
	return d
}

// A queue whose claims go on for long (here each takes a second) lets the others have their turn; a whole tick
// comes to its end all the same.
func TestQueuesTakeTurns(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(10_000)
	r := rules()
	r.Queues = []policy.Queue{queue("long"), queue("short")}
	now := time.Now()
	d := s.dispatcher(r, func(c *dispatcher.Config) {
		c.Now = func() time.Time { now = now.Add(time.Second); return now }
	})
	s.turn(d)
	s.calls("long", 9000)
	s.calls("short", 10)
	for range 2 { // the order of the queues turns
		s.poll(d)
	}
	s.want(`SELECT count(DISTINCT batch) = 2 FROM callq.call_open WHERE queue = 'long'`)
	s.want(`SELECT count(*) = 10 FROM callq.call_open WHERE queue = 'short'`)
	s.tick(d)
	s.want(`SELECT count(*) = 9000 FROM callq.call_open WHERE queue = 'long'`)
}

// While Postgres is away its workers cannot record what ended. They get the time to do so before what has passed its
// deadline meanwhile is taken for lost, and made again.
func TestNothingIsLostRightAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 2, time.Hour))
	s.calls("default", 1)
	now := time.Unix(0, 0)
	d := s.dispatcher(r, func(c *dispatcher.Config) { c.Now = func() time.Time { return now } })
	s.turn(d)
	s.start(30 * time.Minute)
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)

	s.exec(`ALTER FUNCTION callq.epoch() RENAME TO away`)
	if _, err := d.Step(t.Context(), true); err == nil {
		t.Fatal("a tick went well without Postgres")
	}
	s.exec(`ALTER FUNCTION callq.away() RENAME TO epoch`)
	now = now.Add(5 * time.Second)
	s.turn(d)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`)
	now = now.Add(2 * time.Second)
	s.turn(d)
	s.want(`SELECT outcome = 'lost' FROM call_attempts`)
}
