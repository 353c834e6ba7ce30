package tasks

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/redistest"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// drawing is a database with budgets, and a Redis that a test may stop.
type drawing struct {
	t      *testing.T
	pool   *pgxpool.Pool
	server *local.RedisServer
	log    syncBuffer
	counts *prometheus.Registry
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.buf.String(), text)
}

func newDrawing(t *testing.T) *drawing {
	t.Helper()
	server, err := local.StartRedis(t.Context(), local.Redis{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &drawing{t: t, pool: pgtest.New(t), server: server, counts: prometheus.NewRegistry()}
}

// publish puts a budget in force, as a dispatcher would.
func (d *drawing) publish(name string, units int64, window time.Duration, burst int64, onOutage string) {
	d.t.Helper()
	if _, err := d.pool.Exec(d.t.Context(), `INSERT INTO callq.call_budgets VALUES ($1, $2, $3, $4, $5, now(), 'test')
		ON CONFLICT (name) DO UPDATE SET rate = excluded.rate, window_size = excluded.window_size, burst = excluded.burst`,
		name, units, window, burst, onOutage); err != nil {
		d.t.Fatal(err)
	}
}

func (d *drawing) client() *redis.Client {
	d.t.Helper()
	options, err := redis.ParseURL(d.server.URL())
	if err != nil {
		d.t.Fatal(err)
	}
	options.MaxRetries, options.ContextTimeoutEnabled = -1, true // draws ask again themselves
	client := redis.NewClient(options)
	d.t.Cleanup(func() { _ = client.Close() })
	return client
}

// worker is what the handlers of one more worker are given.
func (d *drawing) worker(metrics prometheus.Registerer) *Call {
	d.t.Helper()
	store := &budget.Store{DB: d.pool, Redis: d.client(), Log: slog.New(slog.NewTextHandler(&d.log, nil)), Within: answerWithin, Again: askAgain}
	go new(Worker{log: slog.New(slog.DiscardHandler)}).every(d.t.Context(), budgetsEvery, store.Read)
	return &Call{budgets: &budgets{Store: store, metrics: newMetrics(metrics), released: func() {}}}
}

// counted is a counter of one budget, or how many were observed.
func (d *drawing) counted(metric, name string) (n float64) {
	d.t.Helper()
	families, err := d.counts.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == metric && m.GetLabel()[0].GetValue() == name {
				n += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return n
}

func (d *drawing) want(metric, name string, want float64) {
	d.t.Helper()
	if got := d.counted(metric, name); got != want {
		d.t.Errorf("%s of %s is %v, want %v", metric, name, got, want)
	}
}

// soon is a context that ends long after whatever a test waits for.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// until asks until it is so.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// Of eight workers' handlers none returns from a draw before its units are there, on Redis's clock.
//
//callq:guarantee 14
func TestDrawIsNeverEarly(t *testing.T) {
	t.Parallel()
	const workers, draws, rate, burst = 8, 25, 100, 10
	d := newDrawing(t)
	d.publish("api", rate, time.Second, burst, "closed")
	clock := d.client()
	began, err := clock.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var returned []time.Time
	var all sync.WaitGroup
	for range workers {
		call := d.worker(nil)
		all.Go(func() {
			for range draws {
				err := call.Draw(soon(t), "api", 1)
				now, err2 := clock.Time(t.Context()).Result()
				if err := errors.Join(err, err2); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				returned = append(returned, now)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.SortFunc(returned, time.Time.Compare)
	for i, at := range returned {
		if due := began.Add(time.Duration(i+1-burst) * time.Second / rate); at.Before(due) {
			t.Fatalf("draw %d of %d returned %s too early", i+1, len(returned), due.Sub(at))
		}
	}
}

// What cannot be had in time is refused at once, with how long it would take, and takes nothing.
//
//callq:guarantee 15
func TestDrawRefused(t *testing.T) {
	t.Parallel()
	d := newDrawing(t)
	d.publish("api", 1, time.Hour, 3, "closed")
	call := d.worker(d.counts)
	ctx := soon(t)
	if err := call.Draw(ctx, "api", 2); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		err := call.Draw(ctx, "api", 2)
		refused, ok := errors.AsType[*BudgetError](err)
		if !ok || refused.Budget != "api" || refused.Units != 2 || refused.Wait < 50*time.Minute || refused.Wait > time.Hour+time.Minute ||
			refused.Left <= 0 || refused.Left > 10*time.Minute || !strings.Contains(err.Error(), `budget "api" has 2 free in `) {
			t.Fatalf("refused with %v", err)
		}
		if wait, err := call.TryDraw(ctx, "api", 2); err != nil || wait < 50*time.Minute {
			t.Fatalf("it may draw after %s (%v)", wait, err)
		}
	}
	d.want("callq_budget_refused_total", "api", 6)
	if wait, err := call.TryDraw(ctx, "api", 1); err != nil || wait != 0 {
		t.Errorf("the third unit is free in %s (%v)", wait, err)
	}
	d.want("callq_budget_units_total", "api", 3)
	d.want("callq_budget_wait_seconds", "api", 2)
	for n, words := range map[int64]string{4: "the most at once is 3 (1 per 1h, burst 3): draw in parts", 0: "draw 1 at least", -1: "draw 1 at least"} {
		if err := call.Draw(ctx, "api", n); err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), `budget "api"`) {
			t.Errorf("of %d units: %v", n, err)
		}
	}
	if err := new(Call).Draw(ctx, "api", 1000); err != nil {
		t.Errorf("in a test of a handler: %v", err)
	}
}

// A draw that waits ends with its context, and says why.
func TestDrawEndsWithItsContext(t *testing.T) {
	t.Parallel()
	d := newDrawing(t)
	d.publish("api", 1, time.Hour, 1, "closed")
	call := d.worker(nil)
	if err := call.Draw(t.Context(), "api", 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- call.Draw(ctx, "api", 1) }()
	until(t, "the draw waits", func() bool {
		rule := budget.Rule{Rate: limit.Rate{Units: 1, Window: time.Hour}, Burst: 1}
		s, err := budget.Peek(t.Context(), call.budgets.Redis, budget.Units{Name: "api", Rule: rule, N: 1})
		return err == nil && s[0].Waiting > 50*time.Minute
	})
	cancel(ErrCancelled)
	if err := <-ended; !errors.Is(err, ErrCancelled) {
		t.Errorf("it ended with %v", err)
	}
	if err := call.Draw(ctx, "api", 1); !errors.Is(err, ErrCancelled) {
		t.Errorf("after its end it drew: %v", err)
	}
}

// A budget that appears, changes or goes is known without a restart.
func TestDrawFollowsTheRules(t *testing.T) {
	t.Parallel()
	d := newDrawing(t)
	call := d.worker(nil)
	ctx := soon(t)
	if err := call.Draw(ctx, "api", 1); err == nil || !strings.Contains(err.Error(), "add it under budgets") {
		t.Errorf("of a budget that is nowhere: %v", err)
	}
	d.publish("api", 1, time.Hour, 1, "closed")
	until(t, "it is known", func() bool { wait, err := call.TryDraw(ctx, "api", 1); return err == nil && wait == 0 })
	if wait, err := call.TryDraw(ctx, "api", 1); err != nil || wait < 50*time.Minute {
		t.Errorf("the next is free in %s (%v)", wait, err)
	}
	d.publish("api", 1000, time.Second, 1, "closed")
	until(t, "the higher rate holds", func() bool { wait, err := call.TryDraw(ctx, "api", 1); return err == nil && wait == 0 })
	if _, err := d.pool.Exec(ctx, `DELETE FROM callq.call_budgets`); err != nil {
		t.Fatal(err)
	}
	until(t, "it is gone", func() bool { _, err := call.TryDraw(ctx, "api", 1); return err != nil })
}

// While Redis is gone, or frozen, draws go through or wait, as their budget says; that is logged once.
//
//callq:guarantee 19
func TestDrawWithoutRedis(t *testing.T) {
	t.Parallel()
	for what, strike := range map[string]func(d *drawing) (heal func() error){
		"gone": func(d *drawing) func() error {
			d.server.Kill()
			return func() error { return d.server.Restart(context.Background()) }
		},
		"frozen": func(d *drawing) func() error {
			pid := d.server.Pid()
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				d.t.Fatal(err)
			}
			heal := func() error { return syscall.Kill(pid, syscall.SIGCONT) }
			d.t.Cleanup(func() { _ = heal() }) // a frozen one could not be stopped
			return heal
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := newDrawing(t)
			d.publish("open", 1, time.Hour, 1, "open")
			d.publish("closed", 1, time.Hour, 2, "closed")
			call := d.worker(d.counts)
			ctx := soon(t)
			for _, name := range []string{"open", "closed"} {
				if err := call.Draw(ctx, name, 1); err != nil {
					t.Fatal(err)
				}
			}
			heal := strike(d)
			for range 3 {
				if err := call.Draw(ctx, "open", 1); err != nil {
					t.Errorf("open: %v", err)
				}
				if wait, err := call.TryDraw(ctx, "closed", 1); err == nil {
					t.Errorf("closed: drawn, or free in %s", wait)
				}
			}
			short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			if err := call.Draw(short, "closed", 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("closed, until its deadline: %v", err)
			}
			waits := make(chan error, 1)
			go func() { waits <- call.Draw(ctx, "closed", 1) }()
			until(t, "a draw waits for Redis", func() bool { return d.counted("callq_budget_outages_total", "closed") >= 4 })
			select {
			case err := <-waits:
				t.Errorf("closed: it ended with %v", err)
			default:
			}
			if err := heal(); err != nil {
				t.Fatal(err)
			}
			if err := <-waits; err != nil {
				if _, refused := errors.AsType[*BudgetError](err); what == "gone" || !refused { // what was asked while it was frozen may have taken it
					t.Errorf("closed, once Redis is back: %v", err)
				}
			}
			until(t, "open is counted again", func() bool { wait, err := call.TryDraw(ctx, "open", 1); return err == nil && wait > 0 })
			if n := d.counted("callq_budget_uncounted_units_total", "open"); n < 3 || n != d.counted("callq_budget_outages_total", "open") {
				t.Errorf("%v units went through uncounted, want 3 at least, and each counted", n)
			}
			if got := d.log.count("Redis does not answer draws"); got != 2 {
				t.Errorf("logged %d times, want once of each budget:\n%s", got, d.log.buf.String())
			}
		})
	}
}

// What does not pass by itself is the caller's error at once, with what to do: no outage, in which an open budget would have no limit
// and a closed one would be asked until the call ends. Other draws stay counted.
func TestDrawThatIsRefused(t *testing.T) {
	t.Parallel()
	d, ctx := newDrawing(t), soon(t)
	for _, onOutage := range []string{"open", "closed"} {
		for _, name := range []string{"spoilt", "listed", "sound"} {
			d.publish(name+onOutage, 1, time.Hour, 1, onOutage)
		}
	}
	admin := d.client()
	for _, command := range []string{
		"SET callq:budget:{spoiltopen} x", "SET callq:budget:{spoiltclosed} x",
		"LPUSH callq:budget:{listedopen} x", "LPUSH callq:budget:{listedclosed} x",
		"ACL SETUSER keyless on >p ~asynq:* +@all", "ACL SETUSER scriptless on >p ~* +@all -evalsha -eval",
		"ACL SETUSER half on >p ~* +@all -get",
	} {
		var words []any
		for _, w := range strings.Fields(command) {
			words = append(words, w)
		}
		if err := admin.Do(ctx, words...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	as := func(user, password string) *redis.Client {
		options := *admin.Options()
		options.Username, options.Password = user, password
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	locking := redistest.New(t)
	locked := redis.NewClient(locking.Options())
	defer locked.Close()
	if err := locking.ConfigSet(ctx, "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		budget, says, fix string
		client            *redis.Client
	}{
		{"spoilt", "no budget is kept there", "delete that key", admin},
		{"listed", "WRONGTYPE", "delete that key", admin},
		{"sound", "NOPERM", "the right to run scripts", as("keyless", "p")},
		{"sound", "NOPERM", "the right to run scripts", as("scriptless", "p")},
		{"sound", "can't run this command", "the right to run scripts", as("half", "p")},
		{"sound", "WRONGPASS", "user and password", as("half", "q")},
		{"sound", "unauthenticated", "user and password", locked},
		{"none", "no such budget", "under budgets", admin},
	} {
		for _, onOutage := range []string{"open", "closed"} {
			call := d.worker(nil)
			call.budgets.Redis = c.client
			err := call.Draw(ctx, c.budget+onOutage, 1)
			if err == nil {
				t.Errorf("%s, %s: drawn", c.says, onOutage)
				continue
			}
			for _, words := range []string{c.says, c.fix, c.budget + onOutage} {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("%q does not say %q", err, words)
				}
			}
			call.budgets.Redis = admin
			if free, err := call.Peek(ctx, "sound"+onOutage); free != 1 || err != nil {
				t.Errorf("%s: %d units of another draw are free (%v)", c.says, free, err)
			}
		}
	}
	if d.log.count("Redis does not answer") > 0 {
		t.Errorf("taken for an outage:\n%s", d.log.buf.String())
	}
	if err := admin.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil { // full
		t.Fatal(err)
	}
	if err := d.worker(nil).Draw(ctx, "soundopen", 1); err != nil {
		t.Errorf("a full Redis is no outage: %v", err)
	}
}

// A cluster that is drawn on as it cannot be: the draw is an error, and what it named stays counted.
func TestDrawOnAClusterRefused(t *testing.T) {
	t.Parallel()
	d, ctx := newDrawing(t), soon(t)
	d.publish("a", 1, time.Hour, 1, "open")
	d.publish("b", 1, time.Hour, 1, "open")
	nodes := redistest.Cluster(t, 3, 0)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + nodes[0].Port}, ContextTimeoutEnabled: true})
	defer cluster.Close()
	call := d.worker(nil)
	call.budgets.Redis = cluster
	if err := call.Draw(ctx, "a", 1); err != nil {
		t.Fatal(err)
	}
	if err := call.DrawAll(ctx, map[string]int64{"a": 1, "b": 1}); err == nil || !strings.Contains(err.Error(), "one name up to the first slash") {
		t.Errorf("two slots: %v", err)
	}
	if wait, err := call.TryDraw(ctx, "a", 1); wait < 50*time.Minute || err != nil {
		t.Errorf("the second unit is free in %s (%v), want it counted", wait, err)
	}
	moved := 0
	for _, n := range nodes {
		call.budgets.Redis = n.Client
		if _, err := call.TryDraw(ctx, "b", 1); err != nil && strings.Contains(err.Error(), "redis.cluster") {
			moved++
		}
	}
	if moved != 2 {
		t.Errorf("%d of 3 nodes, asked alone, say that they are of a cluster, want 2", moved)
	}
}

// Draws of several budgets, what is free, what they cost in truth, and an API that asks to slow down.
func TestDrawAllAndAdjust(t *testing.T) {
	t.Parallel()
	d := newDrawing(t)
	d.publish("api/requests", 1, time.Hour, 3, "closed")
	d.publish("api/tokens", 1, time.Hour, 1000, "open")
	call, ctx := d.worker(d.counts), soon(t)
	free := func(requests, tokens int64) {
		t.Helper()
		for name, want := range map[string]int64{"api/requests": requests, "api/tokens": tokens} {
			if got, err := call.Peek(ctx, name); err != nil || got != want {
				t.Errorf("%d units of %s are free (%v), want %d", got, name, err, want)
			}
		}
	}
	for range 3 {
		if err := call.DrawAll(ctx, map[string]int64{"api/requests": 1, "api/tokens": 300}); err != nil {
			t.Fatal(err)
		}
	}
	free(0, 100)
	refused, ok := errors.AsType[*BudgetError](call.DrawAll(ctx, map[string]int64{"api/requests": 1, "api/tokens": 50}))
	if !ok || refused.Budget != "api/requests" || refused.Units != 1 {
		t.Errorf("refused with %+v", refused)
	}
	free(0, 100)
	for _, delta := range []int64{-100, +150, -250} { // the last of two draws
		if err := call.Adjust(ctx, "api/tokens", delta); err != nil {
			t.Fatal(err)
		}
	}
	if err := call.Adjust(ctx, "api/tokens", -701); err == nil || !strings.Contains(err.Error(), "has drawn 700 of it") {
		t.Errorf("more is given back than was drawn: %v", err)
	}
	if err := d.worker(nil).Adjust(ctx, "api/tokens", 1); err == nil || !strings.Contains(err.Error(), "has drawn none") {
		t.Errorf("a call that drew nothing adjusts: %v", err)
	}
	free(0, 300)
	if err := call.Throttle(ctx, "api/tokens"); err != nil {
		t.Fatal(err)
	}
	wait, err := call.TryDraw(ctx, "api/tokens", 301)
	if err != nil || wait < time.Hour*11/10 {
		t.Errorf("throttled, the next unit is free in %s (%v), want more than an hour", wait, err)
	}
	for name, want := range map[string]float64{"api/requests": 1, "api/tokens": 0.5} {
		if got := d.counted("callq_budget_multiplier", name); got != want {
			t.Errorf("the multiplier of %s is %v, want %v", name, got, want)
		}
	}
	d.server.Kill()
	if err := call.Draw(ctx, "api/tokens", 7); err != nil {
		t.Error(err)
	}
	if _, err := call.TryDraw(ctx, "api/requests", 1); err == nil {
		t.Error("without Redis, a closed budget gives")
	}
	if err := call.Adjust(ctx, "api/tokens", -7); err != nil {
		t.Errorf("what was not counted is given back: %v", err)
	}
	d.want("callq_budget_uncounted_units_total", "api/tokens", 7)
}

// While Redis does not answer, one draw in a while waits for it, and the others go by at once.
func TestADeadRedisCostsOneTimeout(t *testing.T) {
	t.Parallel()
	d := newDrawing(t)
	d.publish("api", 1, time.Hour, 1, "open")
	call, ctx := d.worker(d.counts), soon(t)
	if err := call.Draw(ctx, "api", 1); err != nil {
		t.Fatal(err)
	}
	pid := d.server.Pid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }() // a frozen one could not be stopped
	asked := 0
	for range 1000 {
		began := time.Now()
		if err := call.Draw(ctx, "api", 1); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > answerWithin/2 {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("%d of 1000 draws waited for Redis, want one", asked)
	}
	d.want("callq_budget_uncounted_units_total", "api", 1000)
}

// The rules that were read last hold while Postgres is away.
func TestDrawWithoutPostgres(t *testing.T) {
	t.Parallel()
	d := newDrawing(t)
	d.publish("api", 1, time.Hour, 2, "closed")
	call := d.worker(nil)
	if err := call.Draw(soon(t), "api", 1); err != nil {
		t.Fatal(err)
	}
	d.pool.Close()
	if err := call.budgets.Read(t.Context()); err == nil {
		t.Fatal("Postgres answers")
	}
	if err := call.Draw(soon(t), "api", 1); err != nil {
		t.Error(err)
	}
	if err := call.Draw(soon(t), "other", 1); err == nil {
		t.Error("a budget that nobody knows was drawn on")
	}
}
