//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/callq/callq/verification/fakeapi"
)

// stallsWith are settings of the limit instead of the default.
var stallsWith = flag.String("slack", "", "the slack of the limits of TestStalls; empty: the default") //nolint:gochecknoglobals // a flag

// plain has a plain client stand in for callq.
var plain = flag.Bool("plain", false, "TestStalls: a loop with golang.org/x/time/rate instead of callq") //nolint:gochecknoglobals // a flag

// standstill is a real server that stands still in one of the ways in which servers do.
type standstill struct {
	name    string
	rate    int
	window  time.Duration // 0: a second
	calls   int
	timeout time.Duration // 0: 30 s
	serve   func(*farm)   // starts the servers; the last one is called
	during  func(*farm)   // what is done to them meanwhile
	within  time.Duration // after so long it ends, whatever is left; 0: when all calls have ended
	probes  int           // that the API may see beyond the rate: one for each arrive_within that it stood still
	short   bool          // it is in CI
}

// The servers are Debian's and run as they are installed, but for the port and the app.
func standstills() []standstill {
	node := func(env ...string) func(*farm) { return func(f *farm) { f.node(env...) } }
	gunicorn := func(env string, args ...string) func(*farm) {
		return func(f *farm) { f.gunicorn(strings.Fields(env), args...) }
	}
	stop := func(d time.Duration) func(*farm) {
		return func(f *farm) {
			time.Sleep(5 * time.Second)
			f.signal(syscall.SIGSTOP)
			time.Sleep(d)
			f.signal(syscall.SIGCONT)
		}
	}
	thrice := func(act func(*farm)) func(*farm) {
		return func(f *farm) {
			for range 3 {
				time.Sleep(4 * time.Second)
				act(f)
			}
		}
	}
	return []standstill{
		{name: "gunicorn, one call in 75 takes 3 s", rate: 20, calls: 400, serve: gunicorn("NTH=75,3"), short: true},
		{name: "gunicorn, a call takes 8 s, timeout 2 s", rate: 20, calls: 60, timeout: 2 * time.Second, serve: gunicorn("EACH=8"), within: time.Minute, probes: 6},
		{name: "node, blocked for 1 s in 5", rate: 20, calls: 400, serve: node("BLOCK=1,5")},
		{name: "node, blocked for 3 s in 10", rate: 20, calls: 400, serve: node("BLOCK=3,10"), short: true},
		{name: "nginx before node, blocked for 3 s in 10", rate: 20, calls: 400, serve: func(f *farm) { f.nginx(f.node("BLOCK=3,10")) }},
		{name: "two nginx before node, blocked for 3 s in 10", rate: 20, calls: 400, serve: func(f *farm) { f.nginx(f.nginx(f.node("BLOCK=3,10"))) }},
		{name: "gunicorn, 0.5 s each for 20 s, then at once", rate: 20, calls: 300, serve: gunicorn("TRICKLE=0.5,20"), short: true},
		{name: "HAProxy, maxconn 1, before node, blocked for 6 s in 12, timeout 2 s", rate: 20, calls: 300, timeout: 2 * time.Second, serve: func(f *farm) { f.haproxy(f.node("BLOCK=6,12")) }, within: 3 * time.Minute, probes: 1},
		{name: "two HAProxy, maxconn 1, before node, blocked for 6 s in 12, timeout 2 s", rate: 20, calls: 300, timeout: 2 * time.Second, serve: func(f *farm) { f.haproxy(f.haproxy(f.node("BLOCK=6,12"))) }, within: 3 * time.Minute, probes: 1},
		{name: "gunicorn, 2 workers, one call in 75 takes 3 s", rate: 20, calls: 400, serve: gunicorn("NTH=75,3", "-w", "2")},
		{name: "gunicorn, cold: imports for 3 s", rate: 20, window: 10 * time.Second, calls: 60, serve: func(f *farm) { f.coldGunicorn("IMPORT=3") }},
		{name: "gunicorn HUP, imports for 2 s", rate: 25, calls: 400, serve: gunicorn("IMPORT=2"), during: thrice(func(f *farm) { f.signal(syscall.SIGHUP) })},
		{name: "gunicorn gthread HUP, imports for 2 s", rate: 25, calls: 400, serve: gunicorn("IMPORT=2", "-k", "gthread", "--threads", "8"), during: thrice(func(f *farm) { f.signal(syscall.SIGHUP) })},
		{name: "Apache before node, graceful", rate: 25, calls: 400, serve: func(f *farm) { f.apache(f.node()) }, during: thrice(func(f *farm) { f.signal(syscall.SIGUSR1) })},
		{name: "nginx before node, reload", rate: 25, calls: 400, serve: func(f *farm) { f.nginx(f.node()) }, during: thrice(func(f *farm) { f.signal(syscall.SIGHUP) })},
		{name: "HAProxy -W before node, reload", rate: 25, calls: 400, serve: func(f *farm) { f.haproxy(f.node()) }, during: thrice(func(f *farm) { f.signal(syscall.SIGUSR2) })},
		{name: "Caddy before node, reload", rate: 25, calls: 400, serve: func(f *farm) { f.caddy(f.node()) }, during: thrice((*farm).reloadCaddy)},
		{name: "node, stopped for 1 s", rate: 20, calls: 300, serve: node(), during: stop(time.Second)},
		{name: "node, stopped for 3 s", rate: 20, calls: 300, serve: node(), during: stop(3 * time.Second), short: true},
		{name: "node, stopped for 10 s", rate: 20, calls: 300, serve: node(), during: stop(10 * time.Second)},
		{name: "node, stopped for 60 s", rate: 20, calls: 300, serve: node(), during: stop(time.Minute), probes: 5},
		{name: "node, backlog of 1, stopped for 3 s", rate: 20, calls: 300, serve: node("BACKLOG=1"), during: stop(3 * time.Second)},
		{name: "gunicorn, backlog of 1, stopped for 3 s", rate: 20, calls: 300, serve: gunicorn("", "--backlog", "1"), during: stop(3 * time.Second)},
	}
}

// An API that stands still, and reads later what a kernel or a proxy has acknowledged, never reads more in any window than its
// limit, and one probe for each arrive_within. The arrivals are what its program has written down.
//
//callq:guarantee 1
func TestStalls(t *testing.T) {
	for _, c := range standstills() {
		if *figures == 1 && !c.short {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for range *figures {
				c.run(t)
			}
		})
	}
}

func (c standstill) run(t *testing.T) {
	window, timeout := max(c.window, time.Second), max(c.timeout, 0)
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	f := &farm{t: t, record: filepath.Join(t.TempDir(), "arrivals")}
	if *plain {
		c.runPlain(f, window, timeout)
		return
	}
	slack := ""
	if *stallsWith != "" {
		slack = ", slack: " + *stallsWith
	}
	s := newStack(t, fmt.Sprintf("limits: {api: {rate: %d/%s%s}}\nqueues: {default: {limits: [api], timeout: %s, backoff: 1s, max_attempts: 20}}",
		c.rate, window, slack, timeout), fakeapi.Config{})
	config, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	config = []byte(strings.Replace(string(config), "worker: {concurrency: 20, shutdown_timeout: 10s}", "", 1)) // the default
	if err := os.WriteFile(s.config, config, 0o600); err != nil {
		t.Fatal(err)
	}
	c.serve(f)
	s.spawn("serve")
	s.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, $2)`, f.url, c.calls)
	began := time.Now()
	if c.during != nil {
		c.during(f)
	}
	const ended = `SELECT NOT EXISTS (SELECT FROM call_queue WHERE status NOT IN ('done', 'failed'))`
	if c.within > 0 {
		s.await(10*time.Minute, ended+` OR clock_timestamp() > $1`, began.Add(c.within))
	} else {
		s.await(10*time.Minute, ended)
	}
	arrivals := f.arrivals()
	most := mostIn(arrivals, window)
	var attempts, failed int
	if err := s.pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM call_attempts WHERE arrived_by IS NOT NULL),
		(SELECT count(*) FROM call_queue WHERE status = 'failed')`).Scan(&attempts, &failed); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	t.Logf("| %s | %d/%s | %d | %.0f %% | %d | %d of %d | %s |", c.name, c.rate, window, most,
		100*float64(len(arrivals))/(float64(c.rate)*max(1, took.Seconds()/window.Seconds())), attempts-len(arrivals), failed, c.calls, took.Round(time.Second))
	if most > c.rate+c.probes {
		t.Errorf("%d arrived in %s; %d are allowed, and %d probes", most, window, c.rate, c.probes)
	}
	s.verify()
}

// runPlain is what one would write without callq: a limiter before each try, a hundred calls at once, and a second between tries.
func (c standstill) runPlain(f *farm, window, timeout time.Duration) {
	c.serve(f)
	limiter := rate.NewLimiter(rate.Every(window/time.Duration(c.rate)), 1)
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), max(c.within, 10*time.Minute))
	defer cancel()
	var all sync.WaitGroup
	var failed, requests atomic.Int64
	slots := make(chan struct{}, 100)
	all.Go(func() {
		for range c.calls {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				for range 20 {
					if limiter.Wait(ctx) != nil {
						break
					}
					requests.Add(1)
					answer, err := client.Get(f.url) //nolint:noctx // the client has a timeout
					if err == nil {
						_, _ = io.Copy(io.Discard, answer.Body)
						_ = answer.Body.Close()
						if answer.StatusCode == http.StatusOK {
							return
						}
					}
					time.Sleep(time.Second)
				}
				failed.Add(1)
			})
		}
	})
	if c.during != nil {
		c.during(f)
	}
	all.Wait()
	arrivals, took := f.arrivals(), time.Since(began)
	f.t.Logf("| %s | %d/%s | %d | %.0f %% | %d | %d of %d | %s | plain", c.name, c.rate, window, mostIn(arrivals, window),
		100*float64(len(arrivals))/(float64(c.rate)*max(1, took.Seconds()/window.Seconds())), int(requests.Load())-len(arrivals), failed.Load(), c.calls, took.Round(time.Second))
}

// mostIn is the largest number of moments in any window.
func mostIn(at []time.Time, window time.Duration) (most int) {
	from := 0
	for i := range at {
		for at[i].Sub(at[from]) >= window {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

// farm is the servers of one run.
type farm struct {
	t      *testing.T
	record string // the file with the arrivals
	url    string // of the one that is called
	config string // Caddy's
	last   *exec.Cmd
	used   int
}

func (f *farm) arrivals() (at []time.Time) {
	file, err := os.Open(f.record)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		ns, err := strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			f.t.Fatal(err)
		}
		at = append(at, time.Unix(0, ns))
	}
	slices.SortFunc(at, time.Time.Compare)
	return at
}

// port is one that is free now.
func (f *farm) port() string {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		f.t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// start runs a server, and waits until it takes connections.
func (f *farm) start(port string, env []string, line ...string) string {
	f.launch(port, env, line...)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second) //nolint:noctx // it has a bound
		if err == nil {
			_ = conn.Close()
			return port
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%v does not listen: %v", line, err)
		}
	}
}

func (f *farm) launch(port string, env []string, line ...string) {
	cmd := exec.Command(line[0], line[1:]...) //nolint:noctx // ended below
	cmd.Env = append(append(os.Environ(), "ARRIVALS="+f.record, "PORT="+port), env...)
	cmd.Dir, _ = filepath.Abs("testdata/stalls")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	f.last, f.url = cmd, "http://127.0.0.1:"+port+"/"
}

func (f *farm) signal(s syscall.Signal) {
	pid := f.last.Process.Pid
	if s == syscall.SIGSTOP || s == syscall.SIGCONT {
		pid = -pid
	}
	if err := syscall.Kill(pid, s); err != nil {
		f.t.Error(err)
	}
}

func (f *farm) node(env ...string) string { return f.start(f.port(), env, "node", "app.js") }

func (f *farm) gunicorn(env []string, args ...string) {
	port := f.port()
	f.start(port, env, append([]string{"gunicorn", "--log-level", "error", "-b", "127.0.0.1:" + port}, append(args, "app:app")...)...)
	_, _ = http.Get(f.url) //nolint:noctx,bodyclose // until its app is there
	if err := os.Truncate(f.record, 0); err != nil {
		f.t.Fatal(err)
	}
}

// coldGunicorn listens, and has not begun to import.
func (f *farm) coldGunicorn(env string) {
	port := f.port()
	f.start(port, []string{env}, "gunicorn", "--log-level", "error", "-b", "127.0.0.1:"+port, "app:app")
}

// file writes a server's configuration.
func (f *farm) file(name, text string) string {
	f.used++
	path := filepath.Join(f.t.TempDir(), fmt.Sprintf("%d-%s", f.used, name))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

func (f *farm) nginx(before string) string { return f.nginxWith(before, "") }

func (f *farm) haproxy(before string) string { return f.haproxyWith(before, "") }

// caddy has an address of its own for its administration, over which it is told to reload.
func (f *farm) caddy(before string) {
	port := f.port()
	f.config = f.file("Caddyfile", fmt.Sprintf("{\nadmin 127.0.0.1:%s\nauto_https off\n}\nhttp://127.0.0.1:%s {\nreverse_proxy 127.0.0.1:%s\n}\n", f.port(), port, before))
	f.start(port, []string{"HOME=" + f.t.TempDir()}, "caddy", "run", "--adapter", "caddyfile", "--config", f.config)
}

func (f *farm) reloadCaddy() {
	reload := exec.Command("caddy", "reload", "--force", "--adapter", "caddyfile", "--config", f.config) //nolint:noctx // it ends soon
	if out, err := reload.CombinedOutput(); err != nil {
		f.t.Errorf("caddy reload: %v\n%s", err, out)
	}
}

func (f *farm) apache(before string) {
	port, dir := f.port(), f.t.TempDir()
	modules := ""
	for _, m := range []string{"mpm_event", "authz_core", "proxy", "proxy_http"} {
		modules += fmt.Sprintf("LoadModule %s_module /usr/lib/apache2/modules/mod_%s.so\n", m, m)
	}
	f.start(port, nil, "apache2", "-D", "FOREGROUND", "-f", f.file("apache.conf", fmt.Sprintf(
		"%sServerName x\nListen 127.0.0.1:%s\nPidFile %s/pid\nErrorLog %s/log\nUser www-data\nGroup www-data\nProxyPass / http://127.0.0.1:%s/\n",
		modules, port, dir, dir, before)))
}
