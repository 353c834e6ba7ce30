package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"golang.org/x/time/rate"

	"github.com/callq/callq/callqueue"
)

// Each peer limits as its documentation, or the limiter's, says.
func limitedPeers() []limitedPeer {
	return slices.Concat([]limitedPeer{
		{name: "callq", postgres: true, redis: true, open: openLimitedCallq},
		{name: asynqRedisRate, redis: true, open: openLimitedAsynq(asynqRedisRate)},
		{name: asynqRedisRateOften, redis: true, open: openLimitedAsynq(asynqRedisRateOften)},
		{name: asynqTimeRate, redis: true, open: openLimitedAsynq(asynqTimeRate)},
		{name: riverRedisRate, postgres: true, redis: true, open: openLimitedRiver},
	}, limitedNodePeers(), []limitedPeer{{name: "loop", open: openLimitedLoop}})
}

// Names of the peers that this program also is, as a process.
const (
	asynqRedisRate      = "Asynq + redis_rate"
	asynqRedisRateOften = "Asynq + redis_rate 200ms" // retries are looked for each 200 ms, not each 5 s
	asynqTimeRate       = "Asynq + x/time/rate"
	riverRedisRate      = "River + redis_rate"
)

const (
	limitedMark = "limited " // before the name of a peer in -as
	limitedKey  = "api"      // of the limit in Redis
	asynqOften  = 200 * time.Millisecond
	asynqWithin = 10 * time.Second // how late a call comes again at most, as in Asynq's example
	// River's documentation has 100. It fetches each 100 ms, so with 25 in each of four processes they would limit to 1,000/s.
	riverSlots = 100
)

// limitedWork is a worker process: where it calls, how often it may, and how often it has.
type limitedWork struct {
	api    string
	rate   int
	ran    atomic.Int64
	client *http.Client
}

// workLimited is a process of a peer: it works until a signal, and then prints how often its handler ran.
func workLimited(ctx context.Context, peer, api, perSecond, calls string) error {
	limit, err := strconv.Atoi(perSecond)
	if err != nil {
		return err
	}
	w := &limitedWork{api: api, rate: limit, client: pacedClient()}
	switch peer {
	case asynqRedisRate, asynqRedisRateOften, asynqTimeRate:
		err = w.asynq(ctx, peer)
	case riverRedisRate:
		err = w.river(ctx)
	default:
		err = w.loop(ctx, calls)
	}
	fmt.Println(w.ran.Load())
	return err
}

// call requests the API's path of a call.
func (w *limitedWork) call(ctx context.Context, n int) error {
	return get(ctx, w.client, w.api+strconv.Itoa(n))
}

// limiter says how long to wait where a call may not go yet.
type limiter interface {
	allow(ctx context.Context) (wait time.Duration, err error)
}

// sharedLimiter is redis_rate, which all processes share: a burst of a second's worth, as PerSecond makes it.
type sharedLimiter struct {
	*redis_rate.Limiter
	limit redis_rate.Limit
}

func (w *limitedWork) sharedLimiter() (limiter, error) {
	options, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		return nil, err
	}
	return sharedLimiter{redis_rate.NewLimiter(redis.NewClient(options)), redis_rate.PerSecond(w.rate)}, nil
}

func (l sharedLimiter) allow(ctx context.Context) (time.Duration, error) {
	result, err := l.Allow(ctx, limitedKey, l.limit)
	if err != nil || result.Allowed > 0 {
		return 0, err
	}
	return result.RetryAfter, nil
}

// ownLimiter is a process's, which knows nothing of the others: each has its part of the limit. A call comes again at
// random, as in Asynq's example.
type ownLimiter struct{ *rate.Limiter }

func (w *limitedWork) ownLimiter() limiter {
	return ownLimiter{rate.NewLimiter(rate.Limit(w.rate)/limitedWorkers, w.rate/limitedWorkers)}
}

func (l ownLimiter) allow(context.Context) (time.Duration, error) {
	if l.Allow() {
		return 0, nil
	}
	return rand.N(asynqWithin), nil
}

// limitedError says when a call comes again that the limiter has turned away: it has not failed.
type limitedError struct{ after time.Duration }

func (e *limitedError) Error() string { return "over the limit, come again in " + e.after.String() }

// asynq is a server whose handler returns an error when it is over the limit, as Asynq's documentation of rate limits
// has it: IsFailure keeps it from counting, and RetryDelayFunc says when it comes again.
func (w *limitedWork) asynq(ctx context.Context, peer string) error {
	at, err := asynqAt(os.Getenv("REDIS_URL"))
	if err != nil {
		return err
	}
	limit := w.ownLimiter()
	if peer != asynqTimeRate {
		if limit, err = w.sharedLimiter(); err != nil {
			return err
		}
	}
	config := asynq.Config{
		Concurrency: limitedSlots, LogLevel: asynq.FatalLevel,
		IsFailure: func(err error) bool {
			_, limited := errors.AsType[*limitedError](err)
			return !limited
		},
		RetryDelayFunc: func(n int, err error, t *asynq.Task) time.Duration {
			if limited, ok := errors.AsType[*limitedError](err); ok {
				return limited.after
			}
			return asynq.DefaultRetryDelayFunc(n, err, t)
		},
	}
	if peer == asynqRedisRateOften {
		config.DelayedTaskCheckInterval = asynqOften
	}
	server := asynq.NewServer(at, config)
	err = server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		w.ran.Add(1)
		wait, err := limit.allow(ctx)
		if err != nil {
			return err
		}
		if wait > 0 {
			return &limitedError{wait}
		}
		n, err := strconv.Atoi(string(t.Payload()))
		if err != nil {
			return err
		}
		return w.call(ctx, n)
	}))
	if err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

func asynqAt(url string) (asynq.RedisClientOpt, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return asynq.RedisClientOpt{}, fmt.Errorf("read Redis's URL: %w", err)
	}
	return asynq.RedisClientOpt{Network: options.Network, Addr: options.Addr}, nil
}

// limitedArgs are a call in River.
type limitedArgs struct {
	Call int `json:"call"`
}

// Kind is the job's name in River.
func (limitedArgs) Kind() string { return "limited" }

type limitedRiverWorker struct {
	river.WorkerDefaults[limitedArgs]
	work  *limitedWork
	limit limiter
}

func (r *limitedRiverWorker) Work(ctx context.Context, job *river.Job[limitedArgs]) error {
	r.work.ran.Add(1)
	wait, err := r.limit.allow(ctx)
	if err != nil {
		return err
	}
	if wait > 0 {
		return river.JobSnooze(wait)
	}
	return r.work.call(ctx, job.Args.Call)
}

// river is a client that snoozes a job which is over the limit. But for its slots it has the settings it comes with.
func (w *limitedWork) river(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	limit, err := w.sharedLimiter()
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &limitedRiverWorker{work: w, limit: limit})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: noLog(), Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverSlots}},
	})
	if err != nil {
		return err
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	return client.Stop(context.WithoutCancel(ctx))
}

// loop makes the calls one after the other, each once the limiter lets it go, and waits for no answer. It has no queue.
func (w *limitedWork) loop(ctx context.Context, calls string) error {
	n, err := strconv.Atoi(calls)
	if err != nil {
		return err
	}
	pace := rate.NewLimiter(rate.Limit(w.rate), 1)
	var failed atomic.Int64
	var answers sync.WaitGroup
	for call := range n {
		if err := pace.Wait(ctx); err != nil {
			return nil // it is to end
		}
		answers.Go(func() {
			w.ran.Add(1)
			if w.call(context.WithoutCancel(ctx), call+1) != nil { // the end is told while the last are being answered
				failed.Add(1)
			}
		})
	}
	answers.Wait()
	<-ctx.Done()
	if failed.Load() > 0 {
		return fmt.Errorf("%d calls failed", failed.Load())
	}
	return nil
}

// printedRuns sums what the processes print when they end.
type printedRuns struct{}

func (printedRuns) runs(_ context.Context, ended processes) (sum int, err error) {
	for _, p := range ended {
		n, err := strconv.Atoi(strings.TrimSpace(p.said.String()))
		if err != nil {
			return 0, fmt.Errorf("how often a handler ran: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// startLimited starts worker processes of this program.
func startLimited(ctx context.Context, peer string, place pacedPlace, count, calls int) (all processes, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	environ := []string{"DATABASE_URL=" + place.postgres, "REDIS_URL=" + place.redis}
	for range count {
		err := all.add(ctx, false, environ, self, "-as", limitedMark+peer, place.api, strconv.Itoa(place.rate), strconv.Itoa(calls))
		if err != nil {
			return nil, errors.Join(err, all.stop())
		}
	}
	return all, nil
}

// limitedCallq is callq as pacedCallq has it: two dispatchers, and the settings it comes with.
type limitedCallq struct{ *pacedCallq }

func openLimitedCallq(ctx context.Context, place pacedPlace) (limitedSystem, error) {
	s, err := openPacedCallq(ctx, place)
	if err != nil {
		return nil, err
	}
	return limitedCallq{s.(*pacedCallq)}, nil
}

func (c limitedCallq) insert(ctx context.Context, n int) error {
	return inBatches(n, func(first, count int) error {
		calls := make([]callqueue.Call, count)
		for i := range calls {
			calls[i].Data = map[string]string{"url": c.place.api + strconv.Itoa(first+i+1)}
		}
		_, err := c.client.InsertMany(ctx, calls)
		return err
	})
}

func (c limitedCallq) start(ctx context.Context) (processes, error) {
	return c.pacedCallq.start(ctx, limitedWorkers)
}

func (c limitedCallq) left(ctx context.Context) (n int, err error) {
	err = c.system.(*callq).producers.QueryRow(ctx, `SELECT count(*) FROM call_queue WHERE status <> 'done'`).Scan(&n)
	return n, err
}

// runs are the attempts that started: the handler is callq's own.
func (c limitedCallq) runs(ctx context.Context, _ processes) (n int, err error) {
	err = c.system.(*callq).producers.QueryRow(ctx, `SELECT count(*) FROM call_attempts WHERE started_at IS NOT NULL`).Scan(&n)
	return n, err
}

// limitedAsynq is Asynq with one of the limiters.
type limitedAsynq struct {
	printedRuns
	*asynqSystem
	peer  string
	place pacedPlace
}

func openLimitedAsynq(peer string) func(context.Context, pacedPlace) (limitedSystem, error) {
	return func(ctx context.Context, place pacedPlace) (limitedSystem, error) {
		s, err := openAsynq(ctx, place.postgres, place.redis)
		if err != nil {
			return nil, err
		}
		return &limitedAsynq{asynqSystem: s.(*asynqSystem), peer: peer, place: place}, nil
	}
}

func (a *limitedAsynq) insert(ctx context.Context, n int) error {
	return byProducers(asynqProducers, n, func(n int) error {
		_, err := a.client.EnqueueContext(ctx, asynq.NewTask(asynqTask, []byte(strconv.Itoa(n))))
		return err
	})
}

func (a *limitedAsynq) start(ctx context.Context) (processes, error) {
	return startLimited(ctx, a.peer, a.place, limitedWorkers, 0)
}

func (a *limitedAsynq) left(context.Context) (int, error) {
	info, err := a.lists.GetQueueInfo(asynqQueue)
	if err != nil {
		return 0, err
	}
	return info.Size, nil // what is archived has failed, and is counted too
}

// limitedRiver is River with redis_rate.
type limitedRiver struct {
	printedRuns
	*riverSystem
	place pacedPlace
}

func openLimitedRiver(ctx context.Context, place pacedPlace) (limitedSystem, error) {
	s, err := openRiver(ctx, place.postgres, place.redis)
	if err != nil {
		return nil, err
	}
	return &limitedRiver{riverSystem: s.(*riverSystem), place: place}, nil
}

func (r *limitedRiver) insert(ctx context.Context, n int) error {
	return inBatches(n, func(first, count int) error {
		jobs := make([]river.InsertManyParams, count)
		for i := range jobs {
			jobs[i].Args = limitedArgs{Call: first + i + 1}
		}
		_, err := r.client.InsertManyFast(ctx, jobs)
		return err
	})
}

func (r *limitedRiver) start(ctx context.Context) (processes, error) {
	return startLimited(ctx, riverRedisRate, r.place, limitedWorkers, 0)
}

func (r *limitedRiver) left(ctx context.Context) (n int, err error) {
	err = r.pool.QueryRow(ctx, `SELECT count(*) FROM river_job WHERE state <> 'completed'`).Scan(&n)
	return n, err
}

// limitedLoop is what a program costs that makes the calls and remembers nothing: the least there is.
type limitedLoop struct {
	printedRuns
	place pacedPlace
	calls int
}

func openLimitedLoop(_ context.Context, place pacedPlace) (limitedSystem, error) {
	return &limitedLoop{place: place}, nil
}

func (l *limitedLoop) insert(_ context.Context, n int) error {
	l.calls = n
	return nil
}

func (l *limitedLoop) start(ctx context.Context) (processes, error) {
	return startLimited(ctx, "loop", l.place, 1, l.calls)
}

func (*limitedLoop) left(context.Context) (int, error) { return 0, nil }

func (*limitedLoop) close() {}
