//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/verification/fakeapi"
)

// insertKeyed queues n calls of each key in turn, with what cost returns, and says both in the URL.
func (s *stack) insertKeyed(keys, n int, cost func() int) {
	s.t.Helper()
	var calls []callqueue.Call
	for range n {
		for k := range keys {
			key, c := fmt.Sprint("k", k), cost()
			calls = append(calls, callqueue.Call{
				Key: key, Cost: int64(c), Data: map[string]any{"url": fmt.Sprintf("%s?key=%s&cost=%d", s.api.URL(), key, c)},
			})
		}
	}
	if _, err := s.client.InsertMany(context.Background(), calls); err != nil {
		s.t.Fatal(err)
	}
}

func one() int { return 1 }

// Eight dispatchers, a limit for each key and one for all: neither is ever exceeded.
//
//callq:guarantee 1
func TestLimitsPerKeyAndInAll(t *testing.T) {
	t.Parallel()
	const perKey, all, window = 5, 30, time.Second
	s := newStack(t, fmt.Sprintf(`limits: {each: {rate: %d/%s, per: key}, all: {rate: %d/%s}}
queues: {default: {limits: [each, all]}}`, perKey, window, all, window), fakeapi.Config{Latency: apiLatency})
	s.start(8, 2)
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	s.insertKeyed(4, 40, one)  // their own limits bind: 20 a second
	s.insertKeyed(20, 10, one) // with these the common one does
	s.awaitDone(2*time.Minute, 360)
	s.exact(all, window, 360)
	if most := s.api.MaxOfKeyInWindow(window); most > perKey {
		t.Errorf("the API saw %d requests of one key in a window of %s; %d are allowed", most, window, perKey)
	}
	s.countRuns(360)
}

// Workers and dispatchers are killed under limits of concurrency: at the API there are never more
// requests at once, in all or of a key.
//
//callq:guarantee 1
func TestLimitsOfConcurrency(t *testing.T) {
	t.Parallel()
	const perKey, all = 2, 6
	s := newStack(t, fmt.Sprintf(`limits: {each: {concurrency: %d, per: key}, all: {concurrency: %d}}
queues: {default: {limits: [each, all], timeout: 2s, backoff: 100ms..200ms, max_attempts: 20}}`, perKey, all),
		fakeapi.Config{Latency: 60 * time.Millisecond})
	dispatchers, workers := []*process{s.spawn("dispatch"), s.spawn("dispatch")}, []*process{s.spawn("work"), s.spawn("work")}
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	s.insertKeyed(6, 100, one)
	for i := range 6 {
		s.await(time.Minute, `SELECT count(*) > $1 FROM call_queue WHERE status = 'done'`, 60*i)
		workers[i%2].kill()
		workers[i%2] = s.spawn("work")
		dispatchers[i%2].kill()
		dispatchers[i%2] = s.spawn("dispatch")
	}
	s.awaitDone(2*time.Minute, 600)
	s.verify()
	if mostAll, mostKey := s.api.MostAtOnce(); mostAll > all || mostKey > perKey {
		t.Errorf("the API had %d requests at once, %d of one key; %d and %d are allowed", mostAll, mostKey, all, perKey)
	}
	s.nothingTwice()
}

// Requests and tokens, as LLM providers count: neither is exceeded, and the tighter one is used.
//
//callq:guarantee 1
func TestLimitsByCost(t *testing.T) {
	t.Parallel()
	const requests, tokens, window = 25, 3000, 2 * time.Second
	s := newStack(t, fmt.Sprintf(`limits: {rpm: {rate: %d/%s}, tpm: {rate: %d/%s, count: cost}}
queues: {default: {limits: [rpm, tpm]}}`, requests, window, tokens, window), fakeapi.Config{Latency: apiLatency})
	s.start(2, 2)
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	random := rand.New(rand.NewPCG(1, 2)) // the same costs in every run
	s.insertKeyed(3, 80, func() int { return 20 + random.IntN(481) })
	s.awaitDone(3*time.Minute, 240)
	s.exact(requests, window, 240)
	if most := s.api.MaxCostInWindow(window); most > tokens {
		t.Errorf("the API saw %d tokens in a window of %s; %d are allowed", most, window, tokens)
	}
	sum := 0
	for _, r := range s.api.Requests() {
		sum += r.Cost
	}
	windows := s.api.Span().Seconds()/window.Seconds() + 1
	used := max(240/(requests*windows), float64(sum)/(tokens*windows))
	t.Logf("used %.1f %% of the tighter limit", 100*used)
	if used < .8 {
		t.Errorf("used %.1f %% of the tighter limit, want at least 80 %%", 100*used)
	}
}

// Sixteen at a time, thrice, each claim slowed: exactly the units of two limits are given out.
//
//callq:guarantee 1
func TestLimitsUnderOnce(t *testing.T) {
	t.Parallel()
	const wide, narrow = 90, 60
	s := newStack(t, fmt.Sprintf(`limits: {wide: {rate: %d/1h}, narrow: {rate: %d/1h}}
queues: {one: {limits: [wide, narrow]}, two: {limits: [wide]}}`, wide, narrow), fakeapi.Config{})
	s.spawn("work")
	s.await(time.Minute, `SELECT count(*) = 1 FROM callq.call_workers`)
	s.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END $$`)
	s.exec(`CREATE TRIGGER slow AFTER INSERT ON callq.call_open FOR EACH STATEMENT EXECUTE FUNCTION slow()`)
	s.insert("one", 150)
	s.insert("two", 150)
	for range 3 {
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				if out, code := s.command("dispatch", "--once"); code != 0 {
					t.Errorf("dispatch --once: exit %d\n%s", code, out)
				}
			})
		}
		all.Wait()
	}
	// The worker's free slots bound what one tick can hand over: system cron comes again.
	for range 100 {
		var n int
		if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM call_queue WHERE status = 'done'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == wide {
			break
		}
		s.command("dispatch", "--once")
	}
	s.awaitDone(time.Minute, wide)
	s.await(time.Minute, `SELECT count(*) FILTER (WHERE queue = 'one') <= $1 FROM call_attempts`, narrow)
	s.exact(wide, time.Hour, wide)
}

// 10,000 calls at 500 a second through 24 queues that share the limit.
//
//callq:guarantee 1
func TestLimitsThroughManyQueues(t *testing.T) {
	const queues, calls, rate = 24, 10_000, 500
	rules := fmt.Sprintf("limits: {api: {rate: %d/1s}}\nqueues:\n", rate)
	for q := range queues {
		rules += fmt.Sprintf("  q%d: {limits: [api]}\n", q)
	}
	s := newStack(t, rules+"", fakeapi.Config{Latency: apiLatency})
	s.start(2, 2)
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	for q := range queues {
		n := calls / queues
		if q < calls%queues {
			n++
		}
		s.insert(fmt.Sprint("q", q), n)
	}
	s.awaitDone(2*time.Minute, calls)
	s.exact(rate, time.Second, calls)
	var runs float64
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*)::float8 / $1 FROM call_attempts WHERE started_at IS NOT NULL`, calls).Scan(&runs); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.4f runs per finished call, used %.1f %%", runs, 100*s.api.Use(rate, time.Second))
	if runs > 1.01 {
		t.Errorf("%.4f runs per finished call, want at most 1.01", runs)
	}
}

// A million due calls without a limit: without a worker Redis stays almost empty, and with one it
// never holds more than that can take up soon.
//
//callq:guarantee 8
func TestBackpressure(t *testing.T) {
	const calls, slots = 1_000_000, 20 // the stack's workers have 20
	s := newStack(t, "queues: {default: {}}", fakeapi.Config{})
	s.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, $2)`, s.api.URL(), calls)
	s.start(2, 0)
	s.await(time.Minute, `SELECT count(*) > 0 FROM callq.call_open`)
	open := s.openAndInRedis(4 * time.Second)
	if open.attempts > 200 || open.messages > 200 {
		t.Errorf("without a worker %d attempts were open and Redis held %d messages, want at most 200", open.attempts, open.messages)
	}
	s.spawn("work")
	s.await(time.Minute, `SELECT count(*) > 0 FROM call_attempts`)
	s.await(time.Minute, `SELECT count(*) > 200 FROM call_attempts`) // what was claimed before it came
	open = s.openAndInRedis(4 * time.Second)
	if open.attempts > 3*slots || open.messages > 2*slots {
		t.Errorf("with a worker of %d slots %d attempts were open and Redis held %d messages", slots, open.attempts, open.messages)
	}
	s.await(time.Minute, `SELECT count(*) >= 5000 FROM call_attempts WHERE outcome = 'done'`)
	s.nothingTwice()
}

type backlog struct{ attempts, messages int64 }

// openAndInRedis is the most attempts that were open, and messages that Redis held, at any look.
func (s *stack) openAndInRedis(during time.Duration) (most backlog) {
	s.t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); {
		var attempts, messages int64
		if err := s.pool.QueryRow(s.t.Context(), `SELECT count(*) FROM callq.call_open`).Scan(&attempts); err != nil {
			s.t.Fatal(err)
		}
		keys, err := s.redisClient.Keys(s.t.Context(), "*").Result()
		if err != nil {
			s.t.Fatal(err)
		}
		for _, key := range keys {
			messages += s.redisClient.LLen(s.t.Context(), key).Val()
		}
		most = backlog{max(most.attempts, attempts), max(most.messages, messages)}
	}
	return most
}
