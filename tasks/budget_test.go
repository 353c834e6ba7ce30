package tasks

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/pgtest"
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
