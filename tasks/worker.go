// Package tasks runs attempts: it takes them from Asynq, starts each in Postgres, runs its handler and records how it ended.
//
// It promises that a handler runs at most once per attempt, whatever Redis repeats; that the start is durable before
// the handler runs (or, for the http task, before a byte of the request is written); and that an outcome is recorded
// before its slot is free. What it does not promise: that a custom handler stops when its context ends.
package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Config is what a worker needs. Zero values mean the defaults.
type Config struct {
	// Pool describes how to reach Postgres; required. The worker makes connections of its own from its configuration, at
	// least 8, so that its sessions are set as its statements need it.
	Pool        *pgxpool.Pool
	Redis       redis.UniversalClient // required
	Schema      string                // callq's own; default callq
	TableSchema string                // that of call_queue and call_attempts; default public
	Budgets     redis.UniversalClient // where budgets are; default: Redis
	Concurrency int                   // slots: attempts at once; default 100
	Labels      []string              // what queues can ask for; at most 64, of 255 bytes each
	// HTTP has the worker take calls of the built-in task http too, within these permissions. Nil: it takes none.
	HTTP *HTTPConfig
	// Client describes where the Call.Client of handlers may go, and how. Nil: as HTTP says, or the defaults where that
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
	handlers map[string]Handler
	http     atomic.Pointer[httptask.Task] // nil: it does not take the task http
	client   *httptask.Task                // of handlers' Call.Client; nil: http
	log      *slog.Logger
	metrics  *metrics
	slots    slots
	arrivals *httptask.Arrivals // of all its tasks
	sheds    sheds
	remotes  remotes
	ready    atomic.Bool // attempts are accepted
	lagged   sync.Once   // warns of reads that a standby answers
	session
}

// session is what Run sets before anything else runs.
type session struct {
	pool     string // of workers
	database string // its id
	db       schema.DB
	loads    *ledger.Batch[handoff.Ref, *attempt]
	starts   *starts
	recorder *recorder
	running  *running
	budgets  *budget.Store
	vouches  bool // a failover was seen, and what this worker knows is still to be written again; of the heartbeats
	// serving is Run's context: when it ends the worker drains. handling is the handlers': it is cancelled, with that as its
	// cause, when the shutdown timeout has passed. recording is that of statements: it outlives handling by recordGrace.
	serving, handling, recording context.Context
}

const (
	maxLabels        = 64 // each claim reads the labels of all workers
	batchSize        = 1024
	loadSize         = 128 // an answer holds as much call_data
	lanes            = 2   // connections for loads, for starts, and for closings: more gained nothing
	connections      = 8   // lanes, heartbeats, and what handlers draw on
	warmed           = 2   // of them: more are opened when statements take long, as when many calls come
	recordGrace      = 5 * time.Second
	statementTimeout = 5 * time.Second
)

// New checks cfg and makes a Worker. It starts nothing.
func New(cfg Config) (*Worker, error) {
	switch {
	case cfg.Pool == nil:
		return nil, errors.New("tasks: Config.Pool is required")
	case cfg.Redis == nil:
		return nil, errors.New("tasks: Config.Redis is required")
	case cfg.Concurrency < 0:
		return nil, fmt.Errorf("tasks: Config.Concurrency is %d; it must be at least 1", cfg.Concurrency)
	case len(cfg.Labels) > maxLabels || slices.ContainsFunc(cfg.Labels, func(l string) bool { return len(l) > 255 }):
		return nil, fmt.Errorf("tasks: Config.Labels has %d labels; at most %d of 255 bytes each are allowed", len(cfg.Labels), maxLabels)
	}
	if err := (schema.Names{Own: cfg.Schema, Tables: cfg.TableSchema}).Check(); err != nil {
		return nil, fmt.Errorf("tasks: %w", err)
	}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 100)
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, time.Minute)
	if cfg.Budgets == nil {
		cfg.Budgets = cfg.Redis
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	host, _ := os.Hostname() // it only makes the id tell more
	w := &Worker{
		cfg:      cfg,
		id:       fmt.Sprintf("%s-%d-%x", host, os.Getpid(), rand.Uint32()),
		handlers: map[string]Handler{},
		log:      cfg.Logger,
		slots:    slots{tokens: make(chan struct{}, cfg.Concurrency)},
		arrivals: httptask.NewArrivals(),
	}
	if err := w.makeHTTP(); err != nil {
		return nil, err
	}
	w.metrics = newMetrics(cfg.Metrics)
	return w, nil
}

// Handle gives the handler of a task. Call it before Run. It panics where the task has one already, as "http" does, which is
// built in.
func (w *Worker) Handle(task string, handler Handler) {
	if task == "" || task == HTTP || w.handlers[task] != nil || handler == nil {
		panic(fmt.Sprintf("tasks: Handle(%q): the name is empty, built in or taken, or the handler is nil", task))
	}
	w.handlers[task] = handler
}

// Tasks are the names of the tasks it handles, sorted.
func (w *Worker) Tasks() []string {
	names := slices.Collect(maps.Keys(w.handlers))
	if w.http.Load() != nil {
		names = append(names, HTTP)
	}
	slices.Sort(names)
	return names
}

// Ready reports whether the worker takes attempts now.
func (w *Worker) Ready() bool { return w.ready.Load() && !w.draining() }

func (w *Worker) schemas() schema.Names {
	return schema.Names{Own: w.cfg.Schema, Tables: w.cfg.TableSchema}
}

func (w *Worker) draining() bool { return w.serving.Err() != nil }

// Run takes and runs attempts until ctx ends, then drains: nothing new starts, what has not
// started goes back, what runs is finished and recorded, within ShutdownTimeout. It waits for
// Postgres and Redis for as long as they are away. A Worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	if w.serving != nil {
		return errors.New("tasks: a Worker runs once")
	}
	if len(w.Tasks()) == 0 {
		return errors.New("tasks: the worker takes nothing: it has no handler and no Config.HTTP")
	}
	db, closePool, err := ledger.Connect(ctx, w.cfg.Pool, w.schemas(), connections)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer closePool()
	defer w.closeHTTP()
	handling, stopHandling := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopHandling(nil)
	recording, stopRecording := context.WithCancel(context.WithoutCancel(ctx))
	w.session = session{
		db:       db,
		pool:     handoff.Pool(w.Tasks(), w.cfg.Labels),
		loads:    ledger.NewBatch(loadSize, nil, nil, w.loadOnce),
		starts:   newStarts(db, w.id),
		recorder: newRecorder(db, w.log, &w.slots),
		running:  &running{db: db, of: map[*attempt]*progress{}},
		budgets:  &budget.Store{DB: db, Redis: w.cfg.Budgets, Log: w.log, Within: answerWithin, Again: askAgain},
		serving:  ctx, handling: handling, recording: recording,
	}
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stopRecording()
	loops.Go(func() { w.loads.Run(recording, lanes) })
	loops.Go(func() { w.starts.Run(recording, lanes) })
	loops.Go(func() { w.starts.acks.Run(recording, 1) })
	loops.Go(func() { w.recorder.closings.Run(recording, lanes) })
	loops.Go(func() { w.recorder.wakeDispatchers(recording) })
	loops.Go(func() { w.every(recording, outliveEvery, w.running.keepOpen) })
	loops.Go(func() { w.every(recording, heartbeatEvery, w.running.endCancelled) })
	loops.Go(func() { w.every(recording, budgetsEvery, w.budgets.Read) })
	loops.Go(func() { w.every(recording, exchangeEvery, w.exchange) })
	loops.Go(func() { w.every(recording, remotesEvery, w.tellRemotes) })
	broker := handoff.New(w.cfg.Redis, db, w.log)
	if !retry(ctx, time.Second, func() error { _, err := broker.Pending(ctx, w.pool); return err }, func(err error) {
		w.log.WarnContext(ctx, "waiting for Redis and Postgres", "err", err)
	}) {
		return nil // ctx ended before anything had begun
	}
	w.database = broker.Database()
	w.warm(ctx)
	taken := make(chan struct{}) // closed when no more is accepted and what was is delivered
	go func() {
		defer close(taken)
		// A message waits for its starts: of few at once, one that waits for its units would hold up those that need not.
		if err := broker.Serve(ctx, w.pool, min(max(w.cfg.Concurrency/16, 4), w.cfg.Concurrency, 32), w.deliver); err != nil {
			w.log.ErrorContext(ctx, "worker stopped taking messages", "err", err)
		}
	}()
	w.ready.Store(true)
	loops.Go(func() { w.heartbeat(ctx) })
	w.log.InfoContext(ctx, "worker started", "worker", w.id, "pool", w.pool, "slots", w.cfg.Concurrency, "tasks", w.Tasks())

	<-ctx.Done()
	w.shutDown(taken, stopHandling)
	return nil
}

// warm has Postgres plan what each call needs on as many connections as a burst uses. A session's first run of a statement
// takes many times as long as the next, and a start that takes longer than send_within is not sent.
func (w *Worker) warm(ctx context.Context) {
	var acquired, planned sync.WaitGroup
	acquired.Add(warmed)
	for range warmed {
		planned.Go(func() {
			conn, err := schema.Acquire(ctx, w.db)
			acquired.Done()
			if err != nil {
				return // ctx has ended, or the one that needs it reports that
			}
			defer conn.Release()
			acquired.Wait() // so that each is another
			_, err = conn.Exec(ctx, loadSQL, []int64{}, []int32{})
			_, startErr := ledger.Start(ctx, conn, w.id, nil)
			if err = errors.Join(err, startErr, w.recorder.closer.Warm(ctx, conn)); err != nil {
				w.log.DebugContext(ctx, "session not warmed", "err", err)
			}
		})
	}
	planned.Wait()
}

// every runs a statement every so often until ctx ends.
func (w *Worker) every(ctx context.Context, d time.Duration, run func(context.Context) error) {
	for pause(ctx, d) {
		if err := run(ctx); err != nil {
			w.log.DebugContext(ctx, "Postgres did not answer", "err", err) // the heartbeat warns of it
		}
	}
}

const heartbeatEvery = 2 * time.Second

// heartbeat tells the dispatchers, every heartbeatEvery, that this worker is alive and what it can take. It stops when the
// worker drains, so that nothing more is sent to it.
func (w *Worker) heartbeat(ctx context.Context) {
	beat := func() error { return w.beat(ctx) }
	warn := func(err error) { w.log.WarnContext(ctx, "heartbeat failed", "err", err) }
	if retry(ctx, 50*time.Millisecond, beat, warn) {
		w.recorder.tell(ctx, callqueue.WakeJoined) // there may be calls that waited for such a worker
	}
	for pause(ctx, heartbeatEvery) {
		retry(ctx, 50*time.Millisecond, beat, warn)
	}
}

// deregister records at once that the worker is no longer alive, so that nothing waits for its heartbeats to be
// missed. The row stays for a while: it has the pool that was last seen.
func (w *Worker) deregister() {
	ctx, cancel := context.WithTimeout(w.recording, heartbeatEvery)
	defer cancel()
	if _, err := w.db.Exec(ctx, deregisterSQL, w.id); err != nil {
		w.log.WarnContext(ctx, "worker not deregistered", "worker", w.id, "err", err)
	}
}

const deregisterSQL = `UPDATE callq.call_workers SET heartbeat_at = heartbeat_at - interval '1 minute' WHERE id = $1`

// shutDown drains. Each stage is bounded: running handlers by ShutdownTimeout, what they leave to
// record by recordGrace. What is then still open is found by recovery.
func (w *Worker) shutDown(taken <-chan struct{}, stopHandling context.CancelCauseFunc) {
	w.log.Info("worker draining", "worker", w.id, "running", len(w.slots.tokens), "shutdown_timeout", w.cfg.ShutdownTimeout)
	w.deregister()
	idle, end := context.WithCancel(context.Background())
	go func() {
		<-taken // so that attempts only fall
		w.slots.attempts.Wait()
		end()
	}()
	if pause(idle, w.cfg.ShutdownTimeout) {
		w.log.Warn("worker cuts off what still runs", "worker", w.id, "running", len(w.slots.tokens))
		stopHandling(fmt.Errorf("cut off: the worker was shutting down, and waited %s", w.cfg.ShutdownTimeout))
		pause(idle, recordGrace)
	}
	w.log.Info("worker stopped", "worker", w.id, "unrecorded", len(w.slots.tokens))
}

// pause waits d, or less if ctx ends: then it returns false.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// retry runs f until it succeeds, or ctx ends: then it returns false. The first error is reported. wait doubles up to 1 s.
func retry(ctx context.Context, wait time.Duration, f func() error, report func(error)) bool {
	for reported := false; ; reported = true {
		err := f()
		if err == nil {
			return true
		}
		if !reported && ctx.Err() == nil {
			report(err)
		}
		if !pause(ctx, wait) {
			return false
		}
		wait = min(2*wait, time.Second)
	}
}
