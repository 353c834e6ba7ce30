// Package tasks runs attempts: it takes them from Asynq, starts each in Postgres, runs its handler and
// records how it ended.
//
// It promises that a handler runs at most once per attempt, whatever Redis repeats;
// that the start is durable before the handler runs (or, for the http task, before a byte of the
// request is written); and that an outcome is recorded before its slot is free. What it does
// not promise: that a handler of one's own stops when its context ends.
package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Config says what a worker needs. Zero values mean the defaults.
type Config struct {
	// Pool says how to reach Postgres; required. The worker makes connections of its own from its configuration, at
	// least 8, so that its sessions are set as its statements need it.
	Pool        *pgxpool.Pool
	Redis       redis.UniversalClient // required
	Concurrency int                   // slots: attempts at once; default 100
	Labels      []string              // what queues can ask for; at most 64, of 255 bytes each
	// HTTP has the worker take calls of the built-in task http too, and says what that may do. Nil: it takes none.
	HTTP *HTTPConfig
	// Client says where the Call.Client of handlers may go, and how. Nil: as HTTP says, or the defaults where that
	// is nil. Its Store and Secrets are of no use.
	Client *HTTPConfig
	// ShutdownTimeout is how long Run waits for running handlers once its context has ended;
	// default 60 s. After it their contexts are cancelled.
	ShutdownTimeout time.Duration
	Logger          *slog.Logger          // default: none
	Metrics         prometheus.Registerer // default: none
}

// Worker runs attempts. Make it with New, add handlers with Handle, then Run.
type Worker struct {
	cfg      Config
	id       string
	pool     string // set by Run, from the handlers
	database string // its id, set by Run
	handlers map[string]Handler
	http     atomic.Pointer[httpTask] // nil: it does not take the task http
	client   *httpTask                // of handlers' Call.Client; nil: http
	log      *slog.Logger
	metrics  *metrics
	budgets  *budgets

	slots    chan struct{} // a token per running attempt
	running  sync.WaitGroup
	contexts contexts
	draining atomic.Bool
	server   atomic.Pointer[handoff.Server] // nil until Run has one
	drain    chan struct{}                  // closed when draining begins
	returned atomic.Int64                   // attempts that draining gave back unstarted
	live     atomic.Bool
	freed    chan struct{} // something came free that dispatchers may wait for
	unused   atomic.Bool   // units among it that were given back

	starts   *ledger.Batch[ledger.StartRequest, ledger.StartAnswer]
	closings *ledger.Batch[ledger.Closing, error] // the answer is whether the row was free
	acks     *ledger.Batch[ledger.Ack, struct{}]
	// handling is the context of handlers: cancelled, with the cause cutOff, when the shutdown timeout has passed.
	// recording is that of the outcomes' statements: it outlives handling by recordGrace.
	handling, recording context.Context
}

const (
	startLanes  = 2 // more connections gained nothing
	closeLanes  = 2
	batchMost   = 1024
	recordGrace = 5 * time.Second
	beatEvery   = 2 * time.Second
	conns       = 8 // lanes, beats, loads, and what handlers draw on
)

// New checks cfg and makes a Worker. It starts nothing.
func New(cfg Config) (*Worker, error) {
	if cfg.Pool == nil {
		return nil, errors.New("tasks: Config.Pool is required")
	}
	if cfg.Redis == nil {
		return nil, errors.New("tasks: Config.Redis is required")
	}
	if cfg.Concurrency < 0 {
		return nil, fmt.Errorf("tasks: Config.Concurrency is %d; it must be at least 1", cfg.Concurrency)
	}
	if len(cfg.Labels) > mostLabels || slices.ContainsFunc(cfg.Labels, func(l string) bool { return len(l) > 255 }) {
		return nil, fmt.Errorf("tasks: Config.Labels has %d labels; at most %d of 255 bytes each are allowed", len(cfg.Labels), mostLabels)
	}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 100)
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, time.Minute)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name the worker: %w", err)
	}
	w := &Worker{
		cfg:      cfg,
		id:       fmt.Sprintf("%s-%d-%x", host, os.Getpid(), rand.Uint32()),
		handlers: map[string]Handler{},
		log:      cfg.Logger,
		metrics:  newMetrics(cfg.Metrics),
		slots:    make(chan struct{}, cfg.Concurrency),
		contexts: contexts{of: map[*attempt]underWay{}},
		drain:    make(chan struct{}),
		freed:    make(chan struct{}, 1),
	}
	if err := w.makeHTTP(); err != nil {
		return nil, err
	}
	w.budgets = newBudgets(cfg, w.metrics)
	w.starts = ledger.NewBatch(batchMost, nil, w.startAll)
	w.closings = ledger.NewBatch(batchMost, func(c ledger.Closing) int { return len(c.Result) }, w.closeAll)
	w.acks = ledger.NewBatch(batchMost, nil, w.acknowledgeAll)
	return w, nil
}

// mostLabels is how many labels a worker may carry: each claim reads those of all workers.
const mostLabels = 64

// makeHTTP makes what sends requests: the task http, where the worker takes it, and handlers' clients.
func (w *Worker) makeHTTP() error {
	if cfg := w.cfg.HTTP; cfg != nil {
		task, err := w.newHTTPTask(*cfg)
		if err != nil {
			return err
		}
		w.http.Store(task)
		if w.cfg.Client == nil {
			return nil
		}
	}
	var err error
	w.client, err = w.newHTTPTask(*cmp.Or(w.cfg.Client, &HTTPConfig{}))
	return err
}

func (w *Worker) newHTTPTask(cfg HTTPConfig) (*httpTask, error) {
	cfg.MaxIdlePerHost = w.cfg.Concurrency
	return newHTTPTask(cfg)
}

// Reload gives the task http other settings, which attempts have that begin from now on. Where it fails, or
// nothing is new, all stays as it was. It is for a worker that was made with Config.HTTP.
func (w *Worker) Reload(cfg HTTPConfig) error {
	was := w.http.Load()
	if was == nil {
		return errors.New("tasks: the worker does not take the task http: it was made without Config.HTTP")
	}
	next, err := w.newHTTPTask(cfg)
	if err != nil || reflect.DeepEqual(next.cfg, was.cfg) { // its connections can be kept
		return err
	}
	w.http.Store(next)
	was.close()
	return nil
}

// Handle gives the handler of a task. Call it before Run; "http" is built in and cannot be
// replaced, and a task has one handler: a second is a mistake in the program, and panics.
func (w *Worker) Handle(task string, handler Handler) {
	if task == "" || task == HTTP || w.handlers[task] != nil || handler == nil {
		panic(fmt.Sprintf("tasks: Handle(%q): the name is empty, built in or taken, or the handler is nil", task))
	}
	w.handlers[task] = handler
}

// Tasks are the names of the tasks it handles, sorted.
func (w *Worker) Tasks() []string {
	var names []string
	if w.http.Load() != nil {
		names = append(names, HTTP)
	}
	for name := range w.handlers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Ready says whether the worker takes attempts now.
func (w *Worker) Ready() bool { return w.live.Load() && !w.draining.Load() }

// Run takes and runs attempts until ctx ends, then drains: nothing new starts, what has not
// started goes back, what runs is finished and recorded, within ShutdownTimeout. It waits for
// Postgres and Redis for as long as they are away. A Worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	if w.pool != "" {
		return errors.New("tasks: a Worker runs once")
	}
	if len(w.Tasks()) == 0 {
		return errors.New("tasks: the worker takes nothing: it has no handler and no Config.HTTP")
	}
	pool, closePool, err := ledger.Connect(ctx, w.cfg.Pool, conns)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer closePool()
	w.cfg.Pool, w.budgets.pool = pool, pool
	w.pool = Pool(w.Tasks(), w.cfg.Labels)
	// Handlers and their records outlive ctx: draining bounds them.
	var stopRecording context.CancelFunc
	var stopHandling context.CancelCauseFunc
	w.handling, stopHandling = context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopHandling(nil)
	w.recording, stopRecording = context.WithCancel(context.WithoutCancel(ctx))
	defer w.closeHTTP()

	var lanes sync.WaitGroup
	lanes.Go(func() { w.starts.Run(w.recording, startLanes) })
	lanes.Go(func() { w.closings.Run(w.recording, closeLanes) })
	lanes.Go(func() { w.acks.Run(w.recording, 1) })
	lanes.Go(func() { w.beat(w.recording) })
	lanes.Go(func() { w.wakeDispatchers(w.recording) })
	lanes.Go(func() { w.hearCancels(w.recording) })
	lanes.Go(func() { w.keepOpen(w.recording) })
	lanes.Go(func() { w.budgets.follow(w.recording) })
	defer lanes.Wait()
	defer stopRecording()

	broker := w.open(ctx)
	if broker == nil {
		return nil // ctx ended before anything had begun
	}
	w.database = broker.Database()
	w.server.Store(broker.NewServer(handoff.ServerConfig{
		Pool: w.pool, Concurrency: min(max(w.cfg.Concurrency/32, 2), 32), Deliver: w.deliver, Logger: w.log,
	}))
	taken := make(chan struct{}) // closed when nothing more is taken and what was is delivered
	go func() {
		defer close(taken)
		if err := w.server.Load().Run(ctx); err != nil {
			w.log.ErrorContext(ctx, "worker takes nothing", "err", err)
		}
	}()
	w.live.Store(true)
	w.log.InfoContext(ctx, "worker started", "worker", w.id, "pool", w.pool, "slots", w.cfg.Concurrency, "tasks", w.Tasks())

	<-ctx.Done()
	w.shutDown(taken, stopHandling)
	return nil
}

func (w *Worker) closeHTTP() {
	for _, task := range []*httpTask{w.http.Load(), w.client} {
		if task != nil {
			task.close()
		}
	}
}

// shutDown drains. Each stage is bounded: running handlers by ShutdownTimeout, what they leave to
// record by recordGrace. What is then still open is found by the dispatcher's sweeper.
func (w *Worker) shutDown(taken <-chan struct{}, stopHandling context.CancelCauseFunc) {
	w.draining.Store(true)
	w.log.Info("worker draining", "worker", w.id, "running", len(w.slots), "shutdown_timeout", w.cfg.ShutdownTimeout)
	close(w.drain)
	w.leave()
	idle := make(chan struct{})
	go func() {
		<-taken // so that running only falls
		w.running.Wait()
		close(idle)
	}()
	if !waitFor(idle, w.cfg.ShutdownTimeout) {
		w.log.Warn("worker cuts off what still runs", "worker", w.id, "running", len(w.slots))
		stopHandling(cutOff(w.cfg.ShutdownTimeout))
		if !waitFor(idle, recordGrace) {
			if running := len(w.slots); running > 0 {
				w.log.Warn("worker left attempts unrecorded", "worker", w.id, "running", running)
			} else { // what it had not started, if anything, is handed over again
				w.log.Warn("worker no longer waits for its servers", "worker", w.id)
			}
		}
	}
	w.log.Info("worker stopped", "worker", w.id, "handed_back", w.returned.Load())
}

// cutOff is why a handler's context ended that still ran when the shutdown timeout had passed.
type cutOff time.Duration

func (d cutOff) Error() string {
	return fmt.Sprintf("cut off: the worker was shutting down, and waited %s", time.Duration(d))
}

func waitFor(done <-chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// pause waits d, or less if ctx ends: then it returns false.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
