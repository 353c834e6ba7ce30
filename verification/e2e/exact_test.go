//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/verification/fakeapi"
	"github.com/jackc/pgx/v5"
)

// figures repeats each scenario and prints the median share of the limit that was used; without
// it each runs once, and only what cannot be noise is asserted.
var figures = flag.Int("figures", 1, "run each exactness scenario so many times and print medians") //nolint:gochecknoglobals // a flag

// scenario is one way to use a limit up.
type scenario struct {
	name     string
	rate     int
	window   time.Duration
	calls    int
	requests int                            // that the API must see
	answer   func(call string, nth int) int // the API's status for the n-th request of a call; nil: 200
	drive    func(*stack)                   // starts the processes and may do worse; nil: 2 dispatchers, 2 workers
	finished string                         // when this holds, all is done; empty: every call is done
	config   string                         // besides the rules
	floor    float64                        // the least share of the limit that CI accepts
	latency  time.Duration                  // of the API's answers; 0: apiLatency
	workers  int                            // 0: 2
	slack    string                         // of the limit; empty: the default
}

// The API answers within 20 ms, and twice as long ago is not its concern: it records arrivals.
const apiLatency = 15 * time.Millisecond

func scenarios() []scenario {
	return []scenario{
		{name: "50 per 5s", rate: 50, window: 5 * time.Second, calls: 500, requests: 500, floor: .8},
		{name: "100 per 1s", rate: 100, window: time.Second, calls: 1000, requests: 1000, floor: .8},
		{
			name: "workers away for three windows, Redis flushed", rate: 50, window: 5 * time.Second,
			calls: 300, requests: 300, drive: workersAway,
		},
		{
			name: "finished rows deleted, retention and vacuum every second", rate: 50, window: 5 * time.Second,
			calls: 300, requests: 300, drive: deleteAndRetain, floor: .8,
			finished: `SELECT count(*) = 0 FROM call_queue`, config: "\nretention: {done: 1s}",
		},
		{
			name: "one call in five fails twice", rate: 50, window: 5 * time.Second, calls: 300, requests: 420,
			answer: failTwice, floor: .8,
		},
	}
}

// figured are scenarios for their figures alone.
func figured() []scenario {
	return []scenario{
		{name: "100 per 1s, 4 workers", rate: 100, window: time.Second, calls: 3000, requests: 3000, workers: 4},
		{name: "100 per 10s, 4 workers", rate: 100, window: 10 * time.Second, calls: 1000, requests: 1000, workers: 4},
		{name: "2000 per 1s, 4 workers", rate: 2000, window: time.Second, calls: 120_000, requests: 120_000, workers: 4},
		{
			name: "100 per 1s, 4 workers, answers of 200 ms", rate: 100, window: time.Second, calls: 3000, requests: 3000,
			workers: 4, latency: 200 * time.Millisecond,
		},
		{
			name: "100 per 1s, 4 workers, answers of 200 ms, slack 20 ms", rate: 100, window: time.Second, calls: 3000, requests: 3000,
			workers: 4, latency: 200 * time.Millisecond, slack: ", slack: 20ms",
		},
	}
}

//callq:guarantee 1 4
func TestExact(t *testing.T) {
	all := scenarios()
	if *figures > 1 {
		all = append(all, figured()...)
	}
	for _, sc := range all {
		t.Run(sc.name, func(t *testing.T) {
			if *figures == 1 {
				t.Parallel()
			}
			var used []float64
			for round := range *figures {
				t.Run(fmt.Sprintf("round %d", round+1), func(t *testing.T) { used = append(used, sc.run(t)) })
			}
			if t.Failed() {
				return
			}
			slices.Sort(used)
			t.Logf("%s: used %.1f %% of the limit (median of %d, %.1f to %.1f)", sc.name,
				100*used[len(used)/2], len(used), 100*used[0], 100*used[len(used)-1])
		})
	}
}

// run runs the scenario once on servers of its own and returns the share of the limit used.
func (sc scenario) run(t *testing.T) float64 {
	t.Helper()
	rules := fmt.Sprintf("limits: {api: {rate: %d/%s%s}}\nqueues: {default: {limits: [api], backoff: 200ms..1s}}", sc.rate, sc.window, sc.slack)
	latency := cmp.Or(sc.latency, apiLatency)
	if sc.workers > 0 {
		t.Setenv("CALLQ_WORKER_CONCURRENCY", "100") // the default
	}
	s := newStack(t, rules+sc.config, fakeapi.Config{Limit: sc.rate, Window: sc.window, Latency: latency, Fail: sc.answer})
	if sc.drive != nil {
		sc.drive(s)
	} else {
		workers := cmp.Or(sc.workers, 2)
		s.start(2, workers)
		s.await(time.Minute, `SELECT count(*) = $1 FROM callq.call_workers`, workers)
	}
	s.insert("default", sc.calls)
	if sc.workers > 0 { // to count in the database takes its share of the CPU
		for s.api.Count() < sc.requests {
			time.Sleep(50 * time.Millisecond)
		}
	}
	windows := time.Duration(sc.requests/sc.rate + 8)
	finished := cmp.Or(sc.finished, fmt.Sprintf(`SELECT count(*) = %d FROM call_queue WHERE status = 'done'`, sc.calls))
	s.await(windows*sc.window+time.Minute, finished)
	s.exact(sc.rate, sc.window, sc.requests)
	s.countRuns(sc.requests)
	used := s.api.Use(sc.rate, sc.window)
	t.Logf("used %.1f %%, most in any %s: %d of %d", 100*used, sc.window, s.api.MaxInWindow(sc.window), sc.rate)
	if used < sc.floor {
		t.Errorf("used %.1f %% of the limit, want at least %.0f %%", 100*used, 100*sc.floor)
	}
	return used
}

// countRuns wants as many runs as requests: attempts that were started and did send. What a busy
// machine held up for longer than send_within was not sent, by the gate, and is said.
func (s *stack) countRuns(requests int) {
	s.t.Helper()
	s.await(time.Minute, `SELECT count(*) = $1 FROM call_attempts WHERE started_at IS NOT NULL AND outcome <> 'not_sent'`, requests)
	rows, err := s.pool.Query(context.Background(), `SELECT count(*) || ' attempts were started and not sent: ' || error
		FROM call_attempts WHERE started_at IS NOT NULL AND outcome = 'not_sent' GROUP BY error`)
	if err != nil {
		s.t.Fatal(err)
	}
	unsent, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	for _, line := range unsent {
		s.t.Log(line)
	}
}

// failTwice fails the first two requests of one call in five.
func failTwice(call string, nth int) int {
	var id int
	if _, err := fmt.Sscan(call, &id); err == nil && id%5 == 0 && nth <= 2 {
		return 503
	}
	return 0
}

// workersAway lets the workers come only after three windows of claims, when Redis has forgotten
// what it was given.
func workersAway(s *stack) {
	s.start(2, 0)
	go func() {
		ctx := s.t.Context()
		select {
		case <-time.After(15 * time.Second):
		case <-ctx.Done():
			return
		}
		s.flushRedis()
		s.spawn("work")
		s.spawn("work")
	}()
}

// deleteAndRetain deletes finished calls, and runs retention and vacuum, every second.
func deleteAndRetain(s *stack) {
	s.start(2, 2)
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	s.t.Cleanup(func() { cancel(); <-stopped })
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			s.exec(`DELETE FROM call_queue WHERE status = 'done'`)
			s.command("maintain", "retention", "--yes")
			s.command("maintain", "vacuum", "--yes")
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
}
