package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

const atAnyPort = "http: {listen: 127.0.0.1:0}\nhttp_task: {private_hosts: [127.0.0.1]}\n"

// daemon is serve, dispatch or work while it runs in this process.
type daemon struct {
	t      *testing.T
	stderr buffer
	stop   context.CancelFunc
	code   chan int
}

// start starts a daemon, which ends with the test.
func (w world) start(args ...string) *daemon {
	w.t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	d := &daemon{t: w.t, stop: stop, code: make(chan int, 1)}
	environ := w.environ()
	go func() { d.code <- runCode(ctx, args, strings.NewReader(""), new(buffer), &d.stderr, environ) }()
	w.t.Cleanup(func() { d.end() })
	return d
}

// startReady starts a daemon, and waits until it is ready.
func (w world) startReady(command string) *daemon {
	w.t.Helper()
	d := w.start(command)
	awaitReady(w.t, addressIn(w.t, &d.stderr))
	return d
}

// end drains the daemon and returns its exit code.
func (d *daemon) end() int {
	d.t.Helper()
	d.stop()
	code := receive(d.t, d.code, "the daemon ends")
	d.code <- code // for who asks again
	return code
}

// addressIn is where a daemon with this log serves http; it waits for it.
func addressIn(t *testing.T, log *buffer) string {
	t.Helper()
	var found []string
	eventually(t, "http is served", func() bool {
		found = regexp.MustCompile(`msg="http served" address=(\S+)`).FindStringSubmatch(log.String())
		return found != nil
	})
	return found[1]
}

// get asks a daemon; 0: it does not answer.
func ask(t *testing.T, address, path string) (int, string) {
	t.Helper()
	body, status, err := get(t.Context(), "http://"+address+path)
	if err != nil {
		return 0, err.Error()
	}
	return status, body
}

func awaitReady(t *testing.T, address string) {
	t.Helper()
	eventually(t, "/readyz answers 200", func() bool { status, _ := ask(t, address, "/readyz"); return status == http.StatusOK })
}

// api is an API that answers when it is let.
func api(t *testing.T) (url string, arrived <-chan struct{}, answer func()) {
	t.Helper()
	requests, gate := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- struct{}{}
		select {
		case <-gate:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	opened := false
	answer = func() {
		if !opened {
			opened = true
			close(gate)
		}
	}
	t.Cleanup(answer) // before Close, which waits
	return server.URL, requests, answer
}

// answering is an API that answers at once.
func answering(t *testing.T) (url string) {
	t.Helper()
	url, _, answer := api(t)
	answer()
	return url
}

func receive[T any](t *testing.T, from <-chan T, fact string) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(waitMost):
		t.Fatalf("not within %s: %s", waitMost, fact)
	}
	return value
}

func (w world) get(id string) shown {
	w.t.Helper()
	return decode[shown](w.t, w.do("calls", "get", id, "-o", "json"))
}

// The way of a call through the program: enqueued, sent, recorded, shown, proven; then a drain.
func TestServe(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort + "limits: {api: {rate: 100/1m}}\nqueues: {pay: {limits: [api]}}\n"
	url, arrived, answer := api(t)
	d := w.start("serve")
	address := addressIn(t, &d.stderr)
	awaitReady(t, address)

	id := w.call(url, "--queue", "pay")
	receive(t, arrived, "the request arrives")
	if call := w.get(id); !call.Running || call.Attempts != 1 {
		t.Errorf("while it runs: %+v", call.Record)
	}
	if s := decode[admin.Status](t, w.do("status", "-o", "json")); len(s.Workers) != 1 || !s.Workers[0].Live || s.Workers[0].Running != 1 {
		t.Errorf("the workers: %+v", s.Workers)
	}
	answer()
	w.done(id)
	if ledger := w.get(id).Ledger; len(ledger) != 1 || ledger[0].Outcome != "done" {
		t.Errorf("the ledger: %+v", ledger)
	}
	w.do("verify")

	if status, body := ask(t, address, "/livez"); status != http.StatusOK {
		t.Errorf("/livez: %d %s", status, body)
	}
	if _, body := ask(t, address, "/metrics"); !strings.Contains(body, `callq_attempts_total{outcome="done",queue="pay"} 1`) {
		t.Errorf("/metrics lacks the attempt:\n%s", body)
	}
	health := w
	health.config = "http: {listen: '" + address + "'}"
	health.do("health", "--ready")
	health.do("health")

	if code := d.end(); code != exitDone {
		t.Errorf("exit code %d\n%s", code, &d.stderr)
	}
	if a := health.run("health"); a.code != exitFailed {
		t.Errorf("health after the end: exit code %d", a.code)
	}
}

// What is away at the start is waited for, said once, and told by /readyz.
func TestServeWaits(t *testing.T) {
	t.Parallel()
	w, redis := newWorld(t).withRedis()
	w.config = atAnyPort
	w.do("migrate", "down", "--yes")
	redis.Kill()
	d := w.start("serve")
	address := addressIn(t, &d.stderr)
	await := func(words string) {
		t.Helper()
		eventually(t, "/readyz says "+words, func() bool {
			status, body := ask(t, address, "/readyz")
			return status == http.StatusServiceUnavailable && strings.Contains(body, words)
		})
	}
	await("callq migrate up")
	await("redis: ")
	w.do("migrate", "up")
	eventually(t, "it waits for Redis", func() bool { return strings.Contains(d.stderr.String(), "msg=waiting for=Redis") })
	await("redis: ")
	if status, _ := ask(t, address, "/livez"); status != http.StatusOK {
		t.Errorf("/livez: %d", status)
	}
	must(t, redis.Restart(t.Context()))
	awaitReady(t, address)
	if code := d.end(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	for _, line := range []string{`msg=waiting for="the schema"`, "msg=waiting for=Redis"} {
		if n := strings.Count(d.stderr.String(), line); n != 1 {
			t.Errorf("%d times in the log, want once: %s\n%s", n, line, &d.stderr)
		}
	}
}

func TestTakenAddress(t *testing.T) {
	t.Parallel()
	taken := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(taken.Close)
	w := world{t: t, postgres: noPostgres, redis: noRedis}
	w.config = "http: {listen: '" + strings.TrimPrefix(taken.URL, "http://") + "'}"
	w.refuses(exitFailed, "address already in use; set http.listen", "serve")
	for _, command := range []string{"dispatch", "work"} {
		d := w.start(command)
		eventually(t, command+" warns and goes on", func() bool {
			return strings.Contains(d.stderr.String(), `level=WARN msg="http not served"`) && strings.Contains(d.stderr.String(), "msg=waiting")
		})
		d.end()
	}
}

// serving is a process that serves, and has a request on its way, which the API answers when it is let.
func (w world) serving() (p *process, id string, answer func()) {
	w.t.Helper()
	url, arrived, answer := api(w.t)
	p = w.spawn("serve").ready()
	id = w.call(url)
	receive(w.t, arrived, "the request arrives")
	return p, id, answer
}

func TestSIGTERMDrains(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort
	p, id, answer := w.serving()

	p.send(syscall.SIGTERM)
	p.says("worker draining")
	if status, body := ask(t, addressIn(t, p.log), "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "shutting down") {
		t.Errorf("/readyz while it drains: %d %s", status, body)
	}
	answer()
	p.exits(exitDone)
	if call := w.get(id); call.Status != callqueue.StatusDone || call.Attempts != 1 {
		t.Errorf("what ran: %+v", call.Record)
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort
	p, _, _ := w.serving()

	p.send(syscall.SIGTERM)
	p.says("worker draining")
	p.send(syscall.SIGINT)
	p.exits(exitFailed)
	p.says("second signal")
}

// process is the program as a process of its own, which is killed when the test ends.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	log *buffer
	dir string // of its config.yaml
}

// command is a process that has not been started.
func (w world) command(args ...string) *process {
	w.t.Helper()
	environ := w.environ()
	p := &process{t: w.t, log: new(buffer), cmd: exec.CommandContext(w.t.Context(), os.Args[0], args...)}
	for _, e := range environ {
		if path, ok := strings.CutPrefix(e, "CALLQ_CONFIG="); ok {
			p.dir = filepath.Dir(path)
		}
	}
	p.cmd.Env, p.cmd.Stderr = append(environ, beCallq+"=1"), p.log
	return p
}

func (p *process) start() *process {
	p.t.Helper()
	must(p.t, p.cmd.Start())
	p.t.Cleanup(p.kill)
	return p
}

// spawn starts a process.
func (w world) spawn(args ...string) *process { w.t.Helper(); return w.command(args...).start() }

// ready waits until it is.
func (p *process) ready() *process { p.t.Helper(); awaitReady(p.t, addressIn(p.t, p.log)); return p }

func (p *process) says(words string) {
	p.t.Helper()
	eventually(p.t, "the log says "+words, func() bool { return strings.Contains(p.log.String(), words) })
}

func (p *process) send(sig os.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(sig))
}

func (p *process) file() string { return filepath.Join(p.dir, "config.yaml") }

// reload writes its configuration and sends SIGHUP.
func (p *process) reload(text string) {
	p.t.Helper()
	must(p.t, os.WriteFile(p.file(), []byte(text), 0o600))
	p.send(syscall.SIGHUP)
}

// exits waits for its end and wants its exit code.
func (p *process) exits(code int) {
	p.t.Helper()
	ended := make(chan struct{})
	go func() { _ = p.cmd.Wait(); close(ended) }() // its error is the exit code
	receive(p.t, ended, "the process ends")
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, want %d\n%s", got, code, p.log)
	}
}

// kill ends it as a crash does; harmless where it has ended.
func (p *process) kill() {
	if p.cmd.Process != nil && p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // its error says that it was killed
	}
}
