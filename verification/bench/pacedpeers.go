package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/callq/callq/callqueue"
)

// runAs is a process that paced or limited starts of this program.
func (sizes) runAs(ctx context.Context, peer string, args []string) error {
	limited, isLimited := strings.CutPrefix(peer, limitedMark)
	switch {
	case isLimited && len(args) == 3:
		return workLimited(ctx, limited, args[0], args[1], args[2])
	case peer == "River":
		return workAsRiver(ctx)
	case peer == "bare" && len(args) == 2:
		rate, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return requestBare(ctx, args[0], rate)
	}
	return errors.New("-as is for this program's own use")
}

// process is a worker or a dispatcher of a peer.
type process struct {
	cmd        *exec.Cmd
	dispatches bool
	said       *bytes.Buffer // on stdout; read it once the process has ended
}

// used is the CPU time of a process that has ended, and of its children, from its start.
func (p process) used() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

type processes []process

// add starts a process. Its log goes to the run's own.
func (all *processes) add(ctx context.Context, dispatches bool, environ []string, path string, args ...string) error {
	return all.addIn(ctx, "", dispatches, environ, path, args...)
}

// addIn starts it in a folder.
func (all *processes) addIn(ctx context.Context, folder string, dispatches bool, environ []string, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), environ...)
	said := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = said, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	*all = append(*all, process{cmd: cmd, dispatches: dispatches, said: said})
	return nil
}

// stop has them drain, and kills those that do not end.
func (all processes) stop() error {
	var errs []error
	for _, p := range all {
		errs = append(errs, p.cmd.Process.Signal(syscall.SIGTERM))
	}
	for _, p := range all {
		kill := time.AfterFunc(stopWithin, func() { _ = p.cmd.Process.Kill() })
		errs = append(errs, p.cmd.Wait())
		kill.Stop()
	}
	return errors.Join(errs...)
}

// pacedCallq is callq as users run it: `callq dispatch` and `callq work` with the settings they come with, and a
// limit that the rate of the calls just meets.
type pacedCallq struct {
	system
	client *callqueue.Client
	place  pacedPlace
}

func openPacedCallq(ctx context.Context, place pacedPlace) (pacedSystem, error) {
	s, err := openCallq(ctx, place.postgres, place.redis)
	if err != nil {
		return nil, err
	}
	c := &pacedCallq{system: s, place: place}
	c.client = s.(*callq).client
	return c, nil
}

func (c *pacedCallq) insert(ctx context.Context) error {
	_, err := c.client.Insert(ctx, callqueue.Call{Data: map[string]string{"url": c.place.api}})
	return err
}

func (c *pacedCallq) start(ctx context.Context, workers int) (all processes, err error) {
	config := c.place.dir + "/config.yaml"
	text := fmt.Sprintf("limits: {api: {rate: %d/1s}}\nqueues: {default: {limits: [api]}}\n", c.place.rate)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	environ := c.environ(c.place.postgres, config)
	for i := range dispatchers + workers {
		verb := "work"
		if i < dispatchers {
			verb = "dispatch"
		}
		if err := all.add(ctx, verb == "dispatch", environ, c.place.callq, verb); err != nil {
			return nil, errors.Join(err, all.stop())
		}
	}
	return all, nil
}

// environ is what its processes are told.
func (c *pacedCallq) environ(postgres, config string) []string {
	return []string{
		"DATABASE_URL=" + postgres, "REDIS_URL=" + c.place.redis, "CALLQ_CONFIG=" + config,
		"CALLQ_HTTP_LISTEN=off", "CALLQ_HTTP_TASK_ALLOW_PRIVATE=true", "CALLQ_LOG_LEVEL=warn",
	}
}

// pacedArgs are an HTTP call in River.
type pacedArgs struct {
	URL string `json:"url"`
}

// Kind is the job's name in River.
func (pacedArgs) Kind() string { return "http" }

// pacedRiver is River, without a limit: it has none of this kind.
type pacedRiver struct {
	system
	client *river.Client[pgx.Tx]
	place  pacedPlace
}

func openPacedRiver(ctx context.Context, place pacedPlace) (pacedSystem, error) {
	s, err := openRiver(ctx, place.postgres, place.redis)
	if err != nil {
		return nil, err
	}
	return &pacedRiver{system: s, client: s.(*riverSystem).client, place: place}, nil
}

func (r *pacedRiver) insert(ctx context.Context) error {
	_, err := r.client.Insert(ctx, pacedArgs{URL: r.place.api}, nil)
	return err
}

func (r *pacedRiver) start(ctx context.Context, workers int) (all processes, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for range workers {
		if err := all.add(ctx, false, []string{"DATABASE_URL=" + r.place.postgres}, self, "-as", "River"); err != nil {
			return nil, errors.Join(err, all.stop())
		}
	}
	return all, nil
}

type pacedRiverWorker struct {
	river.WorkerDefaults[pacedArgs]
	client *http.Client
}

func (w *pacedRiverWorker) Work(ctx context.Context, job *river.Job[pacedArgs]) error {
	return get(ctx, w.client, job.Args.URL)
}

// workAsRiver is a worker process of River, with the settings it comes with but for its number of slots: it fetches
// each 100 ms, and may take what comes meanwhile.
func workAsRiver(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	workers := river.NewWorkers()
	river.AddWorker(workers, &pacedRiverWorker{client: pacedClient()})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: noLog(), Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 500}},
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

// pacedBare is a Go program that makes the same requests at the same rate, and nothing else.
type pacedBare struct{ place pacedPlace }

func openPacedBare(_ context.Context, place pacedPlace) (pacedSystem, error) {
	return pacedBare{place}, nil
}

func (pacedBare) insert(context.Context) error { return nil }

func (pacedBare) close() {}

func (p pacedBare) start(ctx context.Context, _ int) (all processes, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return all, all.add(ctx, false, nil, self, "-as", "bare", p.place.api, strconv.Itoa(p.place.rate))
}

// requestBare makes requests at a rate until ctx ends.
func requestBare(ctx context.Context, url string, rate int) error {
	client, begun := pacedClient(), time.Now()
	tick := time.NewTicker(pacedTick)
	defer tick.Stop()
	for made := 0; ; {
		for due := int(float64(rate) * time.Since(begun).Seconds()); made < due; made++ {
			go func() { _ = get(ctx, client, url) }()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// pacedClient keeps as many connections as it opens.
func pacedClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
}

func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
