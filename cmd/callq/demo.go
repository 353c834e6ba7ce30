package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/words"
)

// demoVerdict is what the demo's API saw.
type demoVerdict struct {
	Done     int     `json:"done"`     // calls that are done
	Requests int     `json:"requests"` // that reached the API
	Max      int     `json:"max"`      // the most in any window
	R429     int     `json:"r429"`     // answers 429 Too Many Requests
	Used     float64 `json:"used"`     // share of what the limit allows, 0 to 1
}

// demo is one run of callq demo.
type demo struct {
	*app
	calls int
	rate  limit.Rate
	keep  bool
}

func demoCommand(a *app) *cobra.Command {
	d, rate := demo{app: a}, "100/10s"
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run 500 calls against a local API that allows 100 per 10 s",
		Long: "Start a Postgres, a Redis and an API of its own, queue calls, and show what the API saw. You need not\n" +
			"configure anything, and nothing is left behind unless you give --keep.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if d.rate, err = limit.ParseRate(rate); err != nil {
				return usagef("--rate: %w", err)
			}
			if d.calls < 1 || d.calls > 1_000_000 {
				return usagef("--calls is %d; it may be 1 to 1000000", d.calls)
			}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().IntVar(&d.calls, "calls", 500, "how many calls to queue")
	cmd.Flags().StringVar(&rate, "rate", rate, "what the API allows")
	cmd.Flags().BoolVar(&d.keep, "keep", false, "leave the servers up until Ctrl-C, and say how to reach them")
	return cmd
}

func (d demo) run(ctx context.Context) (err error) {
	log := slog.New(slog.NewTextHandler(d.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	rate := strings.TrimSuffix(d.rate.String(), ", sliding window")
	fmt.Fprintln(d.stderr, "starting Postgres, Redis and an API that allows", rate)
	own, err := startOwn(ctx, local.Postgres{}, local.Redis{}, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.stop()) }()
	api, err := startDemoAPI(ctx, d.rate)
	if err != nil {
		return err
	}
	defer api.server.Close()

	cfg := config.Default()
	cfg.Postgres.URL, cfg.Postgres.Pool, cfg.Redis.URL = own.Postgres, 20, own.Redis
	cfg.Limits = map[string]config.Limit{"api": {Windows: []config.Window{{Rate: d.rate}}}}
	queue := cfg.Queues["default"]
	queue.Limits = []string{"api"}
	cfg.Queues["default"] = queue
	cfg.Worker.Concurrency, cfg.Worker.ShutdownTimeout = 50, 5*time.Second
	cfg.HTTPTask.AllowPrivate = true
	does := roles{dispatcher: true, worker: true}
	s, err := openServers(ctx, cfg, log, does)
	if err != nil {
		return err
	}
	defer s.close()
	parts, err := makeParts(cfg, s, does, &reloader{})
	if err != nil {
		return err
	}
	producer, err := newClient(cfg, s.pool)
	if err != nil {
		return err
	}
	if err := d.callAll(ctx, s.schemas.In(s.pool), producer, parts, api); err != nil {
		return err
	}
	if d.keep {
		fmt.Fprintf(d.stderr, "\nPostgres  %s\nRedis     %s\nAPI       %s\nCtrl-C ends them.\n", own.Postgres, own.Redis, api.url)
		<-ctx.Done()
	}
	return nil
}

// callAll is the main job: queue the calls, run a dispatcher and a worker until all have ended,
// then ask the API, and verify, what really happened.
func (d demo) callAll(ctx context.Context, pool schema.DB, producer *callqueue.Client, parts []part, api *demoAPI) error {
	ctx, stop := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		stop(runParts(ctx, parts))
	}()
	defer func() { stop(nil); <-ended }()

	calls := make([]callqueue.Call, d.calls)
	for i := range calls {
		calls[i] = callqueue.Call{Data: map[string]any{"method": "POST", "url": api.url, "json": map[string]int{"n": i}}}
	}
	if _, err := producer.InsertMany(ctx, calls); err != nil {
		return fmt.Errorf("queue the calls: %w", err)
	}
	done, err := d.watch(ctx, pool, api)
	if err != nil {
		return err
	}
	return d.verdict(ctx, pool, api, done)
}

// watch shows progress until every call has ended, and returns how many are done. On a terminal it is a live line,
// elsewhere now and then a new one.
func (d demo) watch(ctx context.Context, pool schema.DB, api *demoAPI) (done int, err error) {
	begun := time.Now()
	every, before, after := 250*time.Millisecond, "\r", " "
	if !isTerminal(d.stderr) {
		every, before, after = 2*time.Second, "", "\n"
	}
	defer fmt.Fprintln(d.stderr)
	for {
		ended := 0
		if err := pool.QueryRow(ctx, demoCountSQL).Scan(&done, &ended); err != nil {
			return done, fmt.Errorf("count the calls: %w", err)
		}
		v, inWindow := api.verdict()
		fmt.Fprintf(d.stderr, "%s%3.0fs  %d of %d done  requests in the last %s: %3d of %d  429s: %d%s",
			before, time.Since(begun).Seconds(), done, d.calls, d.rate.Window, inWindow, d.rate.Units, v.R429, after)
		if ended == d.calls {
			return done, nil
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return done, fmt.Errorf("the demo was stopped: %w", context.Cause(ctx))
		}
	}
}

const demoCountSQL = `
SELECT count(*) FILTER (WHERE status = 'done'), count(*) FILTER (WHERE status IN ('done', 'failed', 'cancelled'))
FROM public.call_queue`

func (d demo) verdict(ctx context.Context, pool schema.DB, api *demoAPI, done int) error {
	v, _ := api.verdict()
	v.Done = done
	if err := d.show(v, func(w io.Writer) {
		fmt.Fprintf(w, "calls done         %d of %d\nrequests sent      %d\n", v.Done, d.calls, v.Requests)
		fmt.Fprintf(w, "most in any %-6s %d of %d\nanswers 429        %d\n", d.rate.Window, v.Max, d.rate.Units, v.R429)
		fmt.Fprintf(w, "limit used         %.1f %%\n", 100*v.Used)
	}); err != nil {
		return err
	}
	report, err := verify.Run(ctx, pool, verify.Options{})
	switch {
	case err != nil:
		return err
	case len(report.Findings) > 0:
		return fmt.Errorf("verify found %s; the first: %+v", words.Count(int64(len(report.Findings)), "violation"), report.Findings[0])
	case v.Done < d.calls || int64(v.Max) > d.rate.Units || v.R429 > 0:
		return errors.New("the demo did not do what it shows: see the figures above")
	}
	return nil
}

// demoAPI is an HTTP API with a limit. It counts what arrives on its own clock, and shares no code with what
// keeps the limit.
type demoAPI struct {
	rate   limit.Rate
	url    string
	server *http.Server

	mu       sync.Mutex
	arrivals []time.Time // in order
	saw      demoVerdict // of them, but for what verdict fills in
}

// startDemoAPI starts an API on a free port of the loopback interface.
func startDemoAPI(ctx context.Context, rate limit.Rate) (*demoAPI, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	a := &demoAPI{rate: rate, url: "http://" + listener.Addr().String() + "/"}
	a.server = &http.Server{Handler: a, ReadHeaderTimeout: time.Minute}
	go func() { _ = a.server.Serve(listener) }() // until close
	return a, nil
}

func (a *demoAPI) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	allowed := a.arrived()
	time.Sleep(15 * time.Millisecond) // as an API takes its time
	w.Header().Set("Content-Type", "application/json")
	if !allowed {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	fmt.Fprintln(w, `{"ok":true}`)
}

// arrived records a request and reports whether the limit allows it.
func (a *demoAPI) arrived() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now() // under the lock: arrivals are in order
	a.arrivals = append(a.arrivals, now)
	n := a.within(now)
	a.saw.Max = max(a.saw.Max, n)
	if n > int(a.rate.Units) {
		a.saw.R429++
		return false
	}
	return true
}

// within counts the requests in (at-window, at].
func (a *demoAPI) within(at time.Time) int {
	n := 0
	for _, arrival := range slices.Backward(a.arrivals) {
		if at.Sub(arrival) >= a.rate.Window {
			break
		}
		n++
	}
	return n
}

// verdict judges what has arrived, and counts how much of it in the last window. What is used is its share of what the limit
// allows from the first request to the last.
func (a *demoAPI) verdict() (v demoVerdict, inWindow int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v = a.saw
	v.Requests = len(a.arrivals)
	if v.Requests > 0 {
		span := a.arrivals[v.Requests-1].Sub(a.arrivals[0])
		v.Used = float64(v.Requests) / (float64(a.rate.Units) * (span.Seconds()/a.rate.Window.Seconds() + 1))
	}
	return v, a.within(time.Now())
}
