//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/verification/fakeapi"
	"github.com/callq/callq/verification/oracle"
)

var (
	killSeed   = flag.Uint64("seed", 0, "replay the kills of this seed; 0: a new one")                     //nolint:gochecknoglobals // a flag
	killCount  = flag.Int("kills", 20, "how often something is killed in a round")                         //nolint:gochecknoglobals // a flag
	killRounds = flag.Int("rounds", 1, "rounds, each on servers of its own and with the next higher seed") //nolint:gochecknoglobals // a flag
)

const (
	ofEach      = 3 // dispatchers, and workers
	drainWithin = 2 * time.Minute
	// API answers: of a hundred requests so many.
	answers500, answersNothing, answersLate = 10, 1, 1
)

// killQueue is a queue of the scenario.
type killQueue struct {
	name   string
	limits []string
	keys   int    // whose its calls are, but for a tenth that are nobody's; 0: none has a key
	cost   int    // the most that a call of it costs; 0: 1
	rest   string // of its YAML
}

// killLimits and killQueues are the scenario: what is added here is both published and judged.
func killLimits() []oracle.Limit {
	limits := []oracle.Limit{
		{Name: "fast", Rate: 20, Window: time.Second},
		{Name: "slow", Rate: 60, Window: 5 * time.Second},
		{Name: "tenant", Rate: 4, Window: time.Second, PerKey: true},
		{Name: "tenants", Rate: 12, Window: time.Second},
		{Name: "line", Rate: 2, PerKey: true},
		{Name: "lines", Rate: 6},
		{Name: "quota", Rate: 200, Window: 2 * time.Second, PerKey: true, ByCost: true},
		{Name: "quotas", Rate: 500, Window: 2 * time.Second, ByCost: true},
		{Name: "even", Rate: 1, Window: 30 * time.Millisecond}, // narrow: its calls go in runs
		{Name: "each", Rate: 3, Window: 200 * time.Millisecond, PerKey: true},
	}
	for i := range limits {
		for _, q := range killQueues() {
			for _, name := range q.limits {
				if name == limits[i].Name {
					limits[i].Queues = append(limits[i].Queues, q.name)
				}
			}
		}
	}
	return limits
}

func killQueues() []killQueue {
	return []killQueue{
		{name: "orders", limits: []string{"fast"}, rest: "max_attempts: 100"},
		{name: "mails", limits: []string{"fast", "slow"}, rest: "max_attempts: 100"},
		{name: "reports", limits: []string{"slow"}, rest: "max_attempts: 2, on_lost: fail"}, // some give up
		{name: "imports", limits: []string{"tenant", "tenants"}, keys: 5, rest: "max_attempts: 100"},
		{name: "phones", limits: []string{"line", "lines"}, keys: 5, rest: "max_attempts: 100"},
		{name: "chats", limits: []string{"quota", "quotas", "lines"}, keys: 4, cost: 90, rest: "max_attempts: 100"},
		{name: "pings", limits: []string{"even"}, rest: "max_attempts: 100"},
		{name: "hooks", limits: []string{"each"}, keys: 3, rest: "max_attempts: 100"},
		{name: "polls", limits: []string{"each", "even"}, keys: 3, rest: "max_attempts: 100"},
	}
}

// killRules is the scenario as YAML. Timeouts are short, so that what is lost is found soon. slack must
// cover what a busy machine holds up this process, which is the API, too.
func killRules() string {
	var text strings.Builder
	text.WriteString("schedule: {retention: '@every 2s', vacuum: '@every 7s'}\n")
	text.WriteString("retention: {done: 5s, failed: 8s, cancelled: 5s}\nlimits:\n")
	for _, l := range killLimits() {
		rate := fmt.Sprintf("rate: %d/%s", l.Rate, l.Window)
		if l.Window == 0 {
			rate = fmt.Sprintf("concurrency: %d", l.Rate)
		}
		if l.PerKey {
			rate += ", per: key"
		}
		if l.ByCost {
			rate += ", count: cost"
		}
		fmt.Fprintf(&text, "  %s: {%s, slack: 250ms}\n", l.Name, rate)
	}
	text.WriteString("queues:\n")
	for _, q := range killQueues() {
		fmt.Fprintf(&text, "  %s: {limits: [%s], timeout: 2s, backoff: 100ms..1s, %s}\n", q.name, strings.Join(q.limits, ", "), q.rest)
	}
	return text.String()
}

// killAPI is an API that fails, hangs up and is slow, as the seed says. It is done with every request
// by the deadline of a lost attempt: a worker that is frozen does not hang up, and what an API still
// does for it after that, no limit on what runs at once can count.
func killAPI(seed uint64) fakeapi.Config {
	draw := func(call string, nth int) uint64 {
		h := fnv.New64a()
		fmt.Fprintf(h, "%d/%s/%d", seed, call, nth)
		return h.Sum64() >> 8
	}
	return fakeapi.Config{
		Fail: func(call string, nth int) int {
			if draw(call, nth)%100 < answers500 {
				return 500
			}
			return 0
		},
		HangUp: func(call string, nth int) bool {
			n := draw(call, nth) % 100
			return n >= answers500 && n < answers500+answersNothing
		},
		Slow: func(call string, nth int) time.Duration {
			n, wait := draw(call, nth)%100, time.Duration(draw(call, nth)/100%3000)*time.Millisecond
			if n >= answers500+answersNothing && n < answers500+answersNothing+answersLate {
				return wait // at times past the queues' timeout
			}
			return wait / 10 // so that there is always something under way
		},
	}
}

// TestKill kills, freezes and flushes at random what callq consists of, under load, and then holds
// what the API saw and what the tables say against every rule.
//
//callq:guarantee 1 2 3 4 5 6
func TestKill(t *testing.T) {
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64N(1 << 32)
	}
	for round := range *killRounds {
		t.Run(fmt.Sprintf("seed %d", seed+uint64(round)), func(t *testing.T) {
			killRound(t, seed+uint64(round), *killCount)
		})
	}
}

func killRound(t *testing.T, seed uint64, kills int) {
	t.Helper()
	t.Logf("replay with: -seed %d -kills %d", seed, kills)
	s := newKillStack(t, seed)
	s.record()
	r := &killRun{stack: s, seed: seed, load: &load{s: s, failures: map[string]int{}}, victims: map[string]*victim{}}
	t.Cleanup(r.end)
	r.begin()
	watch := watchStalls()

	producing, stop := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	beside.Go(func() { r.load.run(producing, seed, killQueues()) })
	beside.Go(func() { r.verifyBeside(producing) })
	r.strike(plan(seed, kills))
	stop()
	beside.Wait()
	drained := r.drain()
	r.stalls = watch()
	r.judge(drained)
}

// newKillStack is a stack whose Postgres can be promoted and has a clock that can be set. Where this user may lay one, a
// network lies between the workers and the API.
func newKillStack(t *testing.T, seed uint64) *stack {
	t.Helper()
	dir, api := t.TempDir(), killAPI(seed)
	clock := filepath.Join(dir, "clock")
	if err := os.WriteFile(clock, []byte("+0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var loses atomic.Bool
	var inside []string
	if os.Getuid() == 0 {
		api.Listener, inside = wire{loss: .05, loses: &loses, delay: time.Millisecond}.lay(t, 0)
	} else {
		t.Log("no packets get lost: only root can lay a network")
	}
	s := newStackOn(t, local.Postgres{Dir: filepath.Join(dir, "postgres"), Env: fakeClock(t, clock)}, killRules(), api)
	s.clock, s.postgresDir, s.loses, s.prefix = clock, filepath.Join(dir, "postgres"), &loses, inside
	return s
}

// killRun is one round.
type killRun struct {
	*stack
	seed    uint64
	load    *load
	begun   time.Time
	victims map[string]*victim
	stalls  []stall

	mu     sync.Mutex
	kills  []string // as they happened
	errors []string // of the round itself: what could not be struck or came not back
}

// begin brings up the dispatchers and workers.
func (r *killRun) begin() {
	r.t.Helper()
	everything := &victim{s: r.stack, name: "everything"}
	for i := range ofEach {
		for kind, args := range map[string][]string{"dispatcher": {"dispatch"}, "worker": {"work"}} {
			v := &victim{s: r.stack, name: victimName(kind, i), args: args}
			if err := v.launch(); err != nil {
				r.t.Fatal(err)
			}
			r.victims[v.name] = v
			everything.others = append(everything.others, v)
		}
	}
	for _, name := range []string{"redis", "postgres"} {
		v := &victim{s: r.stack, name: name}
		r.victims[name] = v
		everything.others = append(everything.others, v)
	}
	r.victims[everything.name] = everything
	r.victims["network"] = &victim{s: r.stack, name: "network"}
	r.victims["rows"] = &victim{s: r.stack, name: "rows", others: []*victim{r.victims["postgres"]}}
	clock := &victim{s: r.stack, name: "clock", others: []*victim{r.victims["postgres"]}}
	for i := range ofEach {
		clock.others = append(clock.others, r.victims[victimName("dispatcher", i)])
	}
	r.victims[clock.name] = clock
	r.await(time.Minute, `SELECT count(*) = $1 FROM callq.call_workers`, ofEach)
	r.begun = time.Now()
}

// strike does what is planned, each at its time or, where its victim is still down, as soon as that is
// up again. It returns when everything is.
func (r *killRun) strike(kills []kill) {
	var down sync.WaitGroup
	for i, k := range kills {
		<-time.After(time.Until(r.begun.Add(k.At)))
		v := r.victims[victimName(k.Fault.victim, k.Number)]
		v.mu.Lock()
		at := time.Since(r.begun)
		undo, err := k.Fault.strike(v)
		if err != nil {
			v.mu.Unlock()
			r.fail("kill %d, %s %s: %v", i+1, k.Fault.name, v.name, err)
			continue
		}
		down.Go(func() {
			defer v.mu.Unlock()
			<-time.After(k.Down)
			if err := undo(); err != nil {
				r.fail("kill %d, %s %s: not undone: %v", i+1, k.Fault.name, v.name, err)
			}
			r.note("kill %3d at %9.4fs (planned %9.4fs): %s %s, back at %.4fs", i+1, at.Seconds(), k.At.Seconds(),
				k.Fault.name, v.name, time.Since(r.begun).Seconds())
		})
	}
	down.Wait()
}

// verifyBeside runs callq verify again and again until ctx ends. That it cannot reach Postgres is
// no finding.
func (r *killRun) verifyBeside(ctx context.Context) {
	const every, findings = 2 * time.Second, 3
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if out, code, err := r.tryCommand("verify"); err != nil {
			r.fail("verify beside the load: %v", err)
		} else if code == findings {
			r.fail("verify beside the load, at %.4fs: exit %d\n%s", time.Since(r.begun).Seconds(), code, out)
		}
	}
}

func (r *killRun) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kills = append(r.kills, fmt.Sprintf(format, args...))
}

func (r *killRun) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// drain waits until every call and attempt has ended.
func (r *killRun) drain() bool {
	ctx, cancel := context.WithTimeout(context.Background(), drainWithin)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var drained bool
		_ = r.pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT 1 FROM callq.call_open)
			AND NOT EXISTS (SELECT 1 FROM call_queue WHERE status IN ('new', 'error', 'dispatched'))`).Scan(&drained)
		if drained {
			return true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// end stops what still runs. A daemon that healed drains and exits with 0.
func (r *killRun) end() {
	for _, v := range r.victims {
		if v.process != nil {
			_ = v.process.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	for _, v := range r.victims {
		if v.process == nil {
			continue
		}
		select {
		case <-v.process.done:
		case <-time.After(30 * time.Second):
			v.process.kill()
		}
		if code := v.process.cmd.ProcessState.ExitCode(); code != 0 {
			r.t.Errorf("%s: exit %d after SIGTERM\n%s", v.name, code, tail(v.process.log.String(), 10))
		}
	}
}
