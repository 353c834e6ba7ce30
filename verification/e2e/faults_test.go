//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/callq/callq/verification/fakeapi"
)

const (
	faultRate   = 20
	faultWindow = 2 * time.Second
)

// faultRules: short timeouts, so that what a killed worker leaves is found soon, and what it had sent counts for no longer than the
// tests take.
const faultRules = "limits: {api: {rate: 20/2s, arrive_within: 4s}}\n" +
	"queues: {default: {limits: [api], max_attempts: 20, timeout: 3s, backoff: 100ms..1s}}"

func faultStack(t *testing.T, api fakeapi.Config) *stack {
	t.Helper()
	t.Parallel()
	api.Limit, api.Window = faultRate, faultWindow
	return newStack(t, faultRules, api)
}

// signal sends a signal to a process of the test.
func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// settled checks a scenario in which attempts may have been lost: every call done, no attempt
// sent twice, never over, verify clean. How many requests it took depends on what was hit.
func (s *stack) settled(calls int) {
	s.t.Helper()
	s.awaitDone(2*time.Minute, calls)
	s.await(time.Minute, `SELECT count(*) = 0 FROM callq.call_open`)
	s.exact(faultRate, faultWindow, 0)
	seen := map[string]bool{}
	for _, r := range s.api.Requests() {
		seen[r.CallID] = true
	}
	if len(seen) != calls {
		s.t.Errorf("%d of %d calls reached the API", len(seen), calls)
	}
}

// served waits until the API has seen n requests.
func (s *stack) served(n int) {
	s.t.Helper()
	deadline := time.After(time.Minute)
	for len(s.api.Requests()) < n {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			s.t.Fatalf("the API saw %d requests in a minute, want %d", len(s.api.Requests()), n)
		}
	}
}

//callq:guarantee 3
func TestDispatchersKilled(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	s.spawn("work")
	victim := s.spawn("dispatch")
	s.insert("default", 100)
	for n := range 4 { // whenever in its claim or hand-over that is
		s.served(10 + 15*n)
		victim.kill()
		victim = s.spawn("dispatch")
	}
	s.settled(100)
}

// A claim that was committed and never handed over is found by the next dispatcher. Redis is
// frozen, so that the dispatcher hangs between the two; what reached Redis all the same is flushed.
//
//callq:guarantee 3
func TestDispatcherKilledBetweenClaimAndHandOver(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	victim := s.spawn("dispatch")
	s.await(time.Minute, `SELECT count(*) > 0 FROM callq.call_queues`)
	signal(t, s.redis.Pid(), syscall.SIGSTOP)
	s.insert("default", 30)
	s.await(time.Minute, `SELECT count(*) > 0 FROM callq.call_open`)
	victim.kill()
	signal(t, s.redis.Pid(), syscall.SIGCONT)
	s.flushRedis()
	s.start(1, 1)
	s.settled(30)
	s.await(time.Minute, `SELECT count(*) = 0 FROM call_attempts WHERE outcome = 'lost'`)
	s.exact(faultRate, faultWindow, 30)
}

//callq:guarantee 3 4
func TestWorkerKilledDuringCalls(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: 300 * time.Millisecond})
	s.start(2, 0)
	victim := s.spawn("work")
	s.insert("default", 80)
	for n := range 3 {
		s.served(15 + 20*n)
		victim.kill()
		victim = s.spawn("work")
	}
	s.settled(80)
}

//callq:guarantee 3
func TestRedisFlushed(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	s.start(2, 2)
	s.insert("default", 100)
	for n := range 4 {
		s.served(10 + 20*n)
		s.flushRedis()
	}
	s.settled(100)
}

//callq:guarantee 3
func TestRedisAwayForTenSeconds(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	s.start(2, 2)
	s.insert("default", 100)
	s.served(25)
	s.redis.Kill()
	time.Sleep(10 * time.Second)
	if err := s.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.settled(100)
}

//callq:guarantee 3
func TestPostgresRestarted(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: 100 * time.Millisecond})
	s.start(2, 2)
	s.insert("default", 100)
	for n := range 2 {
		s.served(25 + 30*n)
		s.postgres.Kill()
		if err := s.postgres.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.settled(100)
}

// A server that acknowledges commits before they are durable, as some are set up to, forgets a start
// when it crashes, and the attempt would be sent again.
//
//callq:guarantee 2
func TestPostgresKilledWithAsynchronousCommits(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: time.Second})
	for _, sql := range []string{
		`ALTER SYSTEM SET synchronous_commit = off`, `ALTER SYSTEM SET wal_writer_delay = '10s'`, `SELECT pg_reload_conf()`,
	} {
		s.exec(sql)
	}
	s.await(time.Minute, `SELECT current_setting('synchronous_commit') = 'off'`)
	s.start(1, 1)
	s.await(time.Minute, `SELECT count(*) = 1 FROM callq.call_workers`)
	s.insert("default", 10)
	s.served(10)
	restart, err := (&victim{s: s}).killPostgres()
	if err != nil {
		t.Fatal(err)
	}
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	s.awaitDone(time.Minute, 10)
	s.exact(faultRate, faultWindow, 0)
}

// SIGTERM drains: what runs is finished and recorded, what has not started goes back, exit 0.
func TestTerminateDrains(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: time.Second})
	dispatcher, worker := s.spawn("dispatch"), s.spawn("work")
	s.insert("default", 40)
	s.served(5)
	if code := worker.terminate(); code != 0 {
		t.Errorf("work: exit %d after SIGTERM", code)
	}
	s.await(time.Minute, `SELECT count(*) = 0 FROM callq.call_open WHERE started_at IS NOT NULL`)
	s.await(time.Minute, `SELECT count(*) = 0 FROM call_attempts WHERE outcome NOT IN ('done', 'not_sent')`)
	s.await(time.Minute, fmt.Sprintf(`SELECT count(*) = %d FROM call_attempts WHERE outcome = 'done'`, len(s.api.Requests())))
	if code := dispatcher.terminate(); code != 0 {
		t.Errorf("dispatch: exit %d after SIGTERM", code)
	}
	s.start(1, 1)
	s.settled(40)
}

// A worker that is frozen past its deadlines and thawed adds nothing and overwrites nothing.
//
//callq:guarantee 5
func TestWorkerFrozen(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: 500 * time.Millisecond})
	s.start(1, 0)
	frozen := s.spawn("work")
	s.insert("default", 40)
	s.served(5)
	signal(t, frozen.cmd.Process.Pid, syscall.SIGSTOP)
	s.spawn("work")
	s.await(time.Minute, `SELECT count(*) > 0 FROM call_attempts WHERE outcome = 'lost'`)
	signal(t, frozen.cmd.Process.Pid, syscall.SIGCONT)
	s.settled(40)
}

const inItsClaim = `SELECT count(*) > 0 FROM pg_stat_activity a JOIN pg_locks l USING (pid)
	WHERE a.wait_event_type = 'Lock' AND a.application_name = 'callq'
	  AND l.relation = 'callq.call_locks'::regclass AND l.granted` // it has the claims' room

// dispatcherInItsClaim starts a worker and a dispatcher, inserts 30 calls, and returns while the dispatcher is
// within its claim of them: the table that this writes is locked until release.
func (s *stack) dispatcherInItsClaim() (dispatcher *process, release func()) {
	s.t.Helper()
	s.start(0, 1)
	s.await(time.Minute, `SELECT count(*) = 1 FROM callq.call_workers`)
	dispatcher = s.spawn("dispatch")
	s.await(time.Minute, `SELECT count(*) > 0 FROM callq.call_queues`)
	lock, err := s.pool.Begin(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	release = func() { _ = lock.Rollback(context.Background()) }
	s.t.Cleanup(release) // before the pool is closed
	if _, err := lock.Exec(context.Background(), `LOCK TABLE callq.call_open IN SHARE MODE`); err != nil {
		s.t.Fatal(err)
	}
	s.insert("default", 30)
	s.await(time.Minute, inItsClaim)
	return dispatcher, release
}

// A dispatcher that is frozen within its claim, for however long, holds up the others only until
// Postgres ends its transaction.
//
//callq:guarantee 3
func TestDispatcherFrozenInItsClaim(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	frozen, release := s.dispatcherInItsClaim()
	signal(t, frozen.cmd.Process.Pid, syscall.SIGSTOP)
	release()
	s.start(1, 0)
	s.awaitDone(time.Minute, 30)
	signal(t, frozen.cmd.Process.Pid, syscall.SIGCONT)
	s.settled(30)
}

// Servers that are away when the daemons start are waited for, visibly, and nothing is lost.
func TestServersAwayAtStart(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	s.insert("default", 10)
	s.redis.Kill()
	s.postgres.Kill()
	daemons := []*process{s.spawn("dispatch"), s.spawn("work"), s.spawn("serve")}
	for _, p := range daemons {
		if err := p.says("msg=waiting for=Postgres"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.postgres.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range daemons {
		if err := p.says("msg=waiting for=Redis"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.settled(10)
}

// An API that reads a request on a reused connection and hangs up: net/http by itself would send
// it again on another.
//
//callq:guarantee 2
func TestHangUpOnReusedConnection(t *testing.T) {
	s := faultStack(t, fakeapi.Config{HangUp: func(call string, nth int) bool {
		var id int
		_, err := fmt.Sscan(call, &id)
		return err == nil && id%3 == 0 && nth == 1
	}})
	s.start(1, 1)
	s.insert("default", 60)
	s.settled(60)
	s.exact(faultRate, faultWindow, 80)
}

func TestTwoQueuesShareALimit(t *testing.T) {
	t.Parallel()
	s := newStack(t, "limits: {api: {rate: 20/2s}}\nqueues: {a: {limits: [api]}, b: {limits: [api]}}",
		fakeapi.Config{Limit: faultRate, Window: faultWindow, Latency: apiLatency})
	s.start(2, 2)
	s.insert("a", 60)
	s.insert("b", 60)
	s.settled(120)
	s.exact(faultRate, faultWindow, 120)
}

// dispatch --once from a system cron, sixteen at a time: whole ticks, never over.
func TestOnceFromCron(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	s.start(0, 2)
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	s.insert("default", 60)
	for range 3 {
		var batch []*process
		for range 8 {
			batch = append(batch, s.spawn("dispatch", "--once"))
		}
		for _, p := range batch {
			<-p.done
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("dispatch --once: exit %d\n%s", code, p.log)
			}
		}
		s.await(time.Minute, `SELECT NOT EXISTS (SELECT FROM callq.call_open) AND coalesce(max(bucket), '-infinity') < clock_timestamp() - $1::interval FROM callq.call_usage`,
			faultWindow+200*time.Millisecond) // what was sent counts no more
	}
	s.awaitDone(time.Minute, 60)
	s.exact(faultRate, faultWindow, 60)
}
