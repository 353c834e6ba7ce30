//go:build e2e

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/verification/packages"
)

// limiter is an API that counts 100 a second in a way of its own.
type limiter struct {
	name    string
	from    string // its package, of debian, npm or go, or else its version; "" runs in CI alone, and is in no table
	counts  string
	fits    string // the limit that is never refused
	short   int    // the calls in CI, if it runs there; they go slowly where all but a few of each burst are refused
	advised string // the algorithm that callq limits advise names for it
	bare    bool   // it refuses with a bare 503, of which callq takes the first for failures
	prepare prepare
}

// prepare installs a limiter, and returns what starts it before f.url. That returns what reads its record. Its error is
// packages.ErrMissing if it cannot be had.
type prepare func(t *testing.T) (serve func(f *farm) (read func() []request), err error)

// Limits of callq, as the table in docs/apis.md has them.
const (
	byDefault = "{rate: 100/1s}"
	spaced    = "{rate: 100/s, algorithm: leaky_bucket}"
	bucket    = "{rate: 100/s, algorithm: token_bucket, burst: 100}"
	estimated = "{rate: 100/s, algorithm: sliding_window_counter}"
)

func limiters() []limiter {
	const (
		eachTen   = "one each 10 ms"
		estimate  = "an estimate from two windows"
		fromFirst = "windows from the first request"
		ofClock   = "windows of the clock"
	)
	return []limiter{
		{"nginx `limit_req`", "debian nginx", eachTen, spaced, 100, "leaky_bucket", true, nginxLimits("limit_req zone=z;")},
		{"nginx `limit_req` with `limit_req_status 429`", "", eachTen, spaced, 100, "leaky_bucket", false, nginxLimits("limit_req zone=z; limit_req_status 429;")},
		{"nginx `limit_req` with `burst=100 nodelay`", "debian nginx", "a bucket of 101", bucket, 0, "", true, nginxLimits("limit_req zone=z burst=100 nodelay;")},
		{"nginx `limit_req` with `burst=100`", "debian nginx", "a queue of 100, which delays", byDefault, 0, "", true, nginxLimits("limit_req zone=z burst=100;")},
		{"HAProxy `http_req_rate(1s) gt 100`", "debian haproxy", estimate + "; refused ones too", estimated, 200, "sliding_window_counter", false, haproxyLimits},
		{"express-rate-limit", "npm express-rate-limit", fromFirst, byDefault, 0, "", false, nodeLimits("express.mjs")},
		{"@fastify/rate-limit", "npm @fastify/rate-limit", fromFirst, byDefault, 0, "", false, nodeLimits("fastify.mjs")},
		{"@nestjs/throttler", "npm @nestjs/throttler", "each request for a window; a refusal shuts for one", "{rate: 100/1100ms}", 0, "", false, nodeLimits("nest.mjs")},
		{"rate-limiter-flexible", "npm rate-limiter-flexible", fromFirst, byDefault, 0, "", false, nodeLimits("flexible.mjs")},
		{"koa-ratelimit", "npm koa-ratelimit", fromFirst, byDefault, 0, "", false, nodeLimits("koa.mjs")},
		{"go-chi/httprate", "go github.com/go-chi/httprate", estimate, estimated, 0, "sliding_window_counter", false, goLimits("httprate")},
		{"throttled, MaxBurst 0", "go github.com/throttled/throttled/v2", eachTen, spaced, 0, "leaky_bucket", false, goLimits("throttled")},
		{"throttled, MaxBurst 99", "go github.com/throttled/throttled/v2", "a bucket of 100", bucket, 0, "", false, goLimits("throttled-burst")},
		{"ulule/limiter", "go github.com/ulule/limiter/v3", fromFirst, byDefault, 0, "", false, goLimits("ulule")},
		{"envoyproxy/ratelimit", envoyRatelimit[len(envoyRatelimit)-12 : len(envoyRatelimit)-5], ofClock, byDefault, 0, "", false, envoyLimits},
		{"Flask-Limiter, `fixed-window`", "debian python3-flask-limiter", ofClock, byDefault, 0, "", false, flaskLimits("fixed-window")},
		{"Flask-Limiter, `fixed-window-elastic-expiry`", "debian python3-flask-limiter", "a window that each request extends", "{rate: 100/2s}", 0, "", false, flaskLimits("fixed-window-elastic-expiry")},
		{"Flask-Limiter, `moving-window`", "debian python3-flask-limiter", "any window", byDefault, 0, "", false, flaskLimits("moving-window")},
		{"GCRA in the test", "", eachTen, spaced, 100, "leaky_bucket", false, gcra},
	}
}

// outcome is what became of the calls before a limiter.
type outcome struct {
	refused int
	used    float64 // of the API's 100 a second
	says    string  // the status and headers by which it refuses
}

// An API that counts its 100 a second otherwise than callq does, and answers nothing but a bare 429 or 503, fails no call: each is
// made in the end, every refusal is in the ledger as one, callq doctor tells of it, and callq limits advise names a limit that fits.
// With the limit that fits, none is refused: -figures 2 and more runs that too, and with UPDATE writes the table in docs/apis.md.
func TestAPIs(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // of the table
	for _, c := range limiters() {
		if c.short == 0 && *figures == 1 || c.from == "" && *figures > 1 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			serve, err := c.prepare(t) // one after the other: package managers lock
			if errors.Is(err, packages.ErrMissing) {
				t.Skipf("NOT RUN: %s needs a package that could not be installed: %.200s", c.name, strings.Join(strings.Fields(err.Error()), " "))
			} else if err != nil {
				t.Fatal(err)
			}
			t.Parallel()
			if *figures == 1 {
				c.run(t, "by default", serve, byDefault, c.short)
				return
			}
			refusing := c.run(t, "by default", serve, byDefault, 1000)
			fitting := refusing
			if c.fits != byDefault {
				fitting = c.run(t, "with the limit that fits", serve, c.fits, 1000)
			}
			if fitting.refused > 0 {
				t.Errorf("with %s, %d requests are refused", c.fits, fitting.refused)
			}
			if t.Failed() {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			updateTable(t, c.name, fmt.Sprintf("| %s | %s | %s | %s | %d | `%s` | %d | %.0f %% |\n",
				c.name, version(t, c.from), c.counts, refusing.says, refusing.refused, c.fits, fitting.refused, 100*fitting.used))
		})
	}
}

// run makes calls under a limit, and judges what became of them.
func (c limiter) run(t *testing.T, name string, serve func(f *farm) func() []request, limit string, calls int) (o outcome) {
	t.Run(name, func(t *testing.T) {
		s := newAPIStack(t, fmt.Sprintf("limits: {api: %s}\nqueues: {default: {limits: [api]}}", limit))
		f := &farm{t: t, record: filepath.Join(t.TempDir(), "arrivals"), url: s.api.URL()}
		read := serve(f)
		s.spawn("serve")
		s.insertURLs(f.url, calls)
		s.awaitEnds(20 * time.Minute)

		failed, failures := s.count(`SELECT count(*) FROM call_queue WHERE status <> 'done'`), s.count(`SELECT sum(failed_count) FROM call_queue`)
		all := s.allOf(read)
		o = outcome{refusals(all), used(all), says(t, f.url)}
		t.Log(line(c.name+" | "+limit, all, calls, 100), "failures that count:", failures, fmt.Sprintf("used: %.3f", o.used))
		if failed > 0 || failures > 0 && !c.bare {
			t.Errorf("%d of %d calls failed, and %d attempts count as failures", failed, calls, failures)
		}
		if n := s.count(`SELECT count(*) FROM call_attempts WHERE outcome = 'refused'`); n+failures != o.refused {
			t.Errorf("%d refusals are in the ledger, and %d failures; the API refused %d requests", n, failures, o.refused)
		}
		if late := refusals(all[min(len(all), learning):]); 100*late > 3*len(all) {
			t.Errorf("%d requests are refused after the first %d: calls do not wait for one another", late, learning)
		}
		if out, _ := s.command("doctor"); o.refused*100 > 3*len(all) && !strings.Contains(out, "limits advise api") {
			t.Errorf("doctor does not name callq limits advise; the API refused %d of %d requests:\n%s", o.refused, len(all), out)
		}
		advice, _ := s.command("limits", "advise", "api")
		t.Log("\n" + advice)
		if *figures > 1 && o.refused > 0 && c.advised != "" && !strings.Contains(advice, "algorithm: "+c.advised+"}") {
			t.Errorf("callq limits advise does not name the limit that fits, %s", c.advised)
		}
		s.verify()
	})
	return o
}

// learning is how many requests it takes callq to learn that an API refuses calls that come together: two bursts of 100 each.
const learning = 300

// says is how a limiter refuses: its status, and the headers of its answer that are about limits.
func says(t *testing.T, url string) string {
	t.Helper()
	refusals := make(chan *http.Response, 1)
	var all sync.WaitGroup
	for range 300 {
		all.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return // there may be too many connections
			}
			_ = res.Body.Close()
			if res.StatusCode >= 400 {
				select {
				case refusals <- res:
				default:
				}
			}
		})
	}
	all.Wait()
	if len(refusals) == 0 {
		t.Error("it refuses none of 300 requests at once")
		return ""
	}
	res := <-refusals
	text := []string{strconv.Itoa(res.StatusCode)}
	for _, name := range slices.Sorted(maps.Keys(res.Header)) {
		if lower := strings.ToLower(name); strings.Contains(lower, "ratelimit") || lower == "retry-after" {
			text = append(text, "`"+strings.ReplaceAll(name, "Ratelimit", "RateLimit")+"`")
		}
	}
	return strings.Join(text, ", ")
}

// used is the share of 100 a second that was let through, from the second hundred to the last: what the first hundred may take at
// once does not count, nor what is left of the last window.
func used(all []request) float64 {
	through := slices.DeleteFunc(slices.Clone(all), request.refused)
	if len(through) < 300 {
		return 0
	}
	last := len(through) - 100
	var took time.Duration
	for i := range 100 {
		took += through[last+i].at.Sub(through[100+i].at) / 100
	}
	return float64(last-100) / took.Seconds() / 100
}

// version is that of a limiter's package.
func version(t *testing.T, from string) string {
	t.Helper()
	manager, name, _ := strings.Cut(from, " ")
	switch manager {
	case "debian":
		out, err := exec.CommandContext(t.Context(), "dpkg-query", "-W", "-f", "${source:Upstream-Version}", name).Output()
		if err != nil {
			t.Error(err)
		}
		return string(out)
	case "npm":
		return pinned(t, "package.json", `"`+name+`": "(.*)"`)
	case "go":
		return pinned(t, "go/go.mod", name+` v(\S+)`)
	}
	return from
}

// pinned finds a version in a file of the limiters.
func pinned(t *testing.T, file, pattern string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../limiters", file))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s has no %s", file, pattern)
	}
	return string(m[1])
}

// The table of limiters in docs/apis.md lies between these.
const (
	page       = "../../docs/apis.md"
	tableBegin = "<!-- make apis writes this table -->\n\n"
	tableEnd   = "\n<!-- end -->\n"
	tableHead  = "| limiter | version | it counts | it answers | refused by default | the limit that fits | refused with it | used with it |\n" +
		"| --- | --- | --- | --- | --: | --- | --: | --: |\n"
)

// readTable returns the page around the table, and the rows by their limiters.
func readTable(t *testing.T) (before, after string, rows map[string]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(text), tableBegin)
	table, after, ended := strings.Cut(rest, tableEnd)
	if !begun || !ended {
		t.Fatalf("%s has no table of limiters", page)
	}
	rows = map[string]string{}
	for row := range strings.Lines(table) {
		name, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " |")
		rows[name] = row
	}
	return before, after, rows
}

// updateTable logs a row, and with UPDATE writes it into the page. Limiters that did not run, or failed, keep theirs.
func updateTable(t *testing.T, name, row string) {
	t.Helper()
	t.Log(row)
	if os.Getenv("UPDATE") == "" {
		return
	}
	before, after, rows := readTable(t)
	rows[name] = row
	table := tableHead
	for _, c := range limiters() {
		table += rows[c.name]
	}
	if err := os.WriteFile(page, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
		t.Error(err)
	}
}

// docs/apis.md has a row for each limiter, with the limit that fits.
func TestAPIsInDocs(t *testing.T) {
	t.Parallel()
	_, _, rows := readTable(t)
	for _, c := range limiters() {
		if c.from != "" && !strings.Contains(rows[c.name], "| `"+c.fits+"` |") {
			t.Errorf("%s has the row %q of %s; %s fits", page, rows[c.name], c.name, c.fits)
		}
	}
}

// gcra is in this process.
func gcra(*testing.T) (func(f *farm) func() []request, error) {
	return func(f *farm) func() []request {
		var last time.Time
		api := serveAPI(f.t, func(_ string, now time.Time) (bool, time.Duration) {
			if now.Sub(last) < 10*time.Millisecond {
				return true, 0
			}
			last = now
			return false, 0
		})
		f.url = api.url
		return api.requests
	}, nil
}

// nginxLimits is nginx with limit_req. The Makefile installs it, as HAProxy.
func nginxLimits(how string) prepare {
	return func(*testing.T) (func(f *farm) func() []request, error) {
		return func(f *farm) func() []request { return f.nginxLogs(how + " proxy_pass " + f.url + ";") }, nil
	}
}

// nginxLogs starts nginx, which logs how it has answered.
func (f *farm) nginxLogs(how string) func() []request {
	port, dir := f.port(), f.t.TempDir()
	f.start(port, nil, "nginx", "-e", "stderr", "-c", f.file("nginx.conf", fmt.Sprintf(`daemon off; pid %s/pid; user root; error_log stderr crit; events {}
http {
  log_format record "$msec $status"; access_log %s record;
  limit_req_zone $server_port zone=z:1m rate=100r/s;
  server { listen 127.0.0.1:%s; location / { %s } }
}`, dir, f.record, port, how)))
	return f.logged
}

// haproxyLimits is HAProxy with a rate of requests.
func haproxyLimits(*testing.T) (func(f *farm) func() []request, error) {
	return func(f *farm) func() []request {
		port := f.port()
		_, before, _ := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(f.url, "http://"), "/"))
		config := f.file("haproxy.cfg", fmt.Sprintf(`global
  log stdout format raw daemon
defaults
  mode http
  log global
  option dontlognull
  timeout connect 5s
  timeout client 50s
  timeout server 50s
frontend f
  bind 127.0.0.1:%s
  log-format "%%[date(0,ms)] %%ST"
  stick-table type ip size 1k expire 10s store http_req_rate(1s)
  http-request track-sc0 src
  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 100 }
  default_backend b
backend b
  server s 127.0.0.1:%s
`, port, before))
		f.start(port, nil, "sh", "-c", `exec haproxy -W -f "$0" >"$1"`, config, f.record)
		return f.logged
	}, nil
}

// nodeLimits is a program of Node's in ../limiters.
func nodeLimits(script string) prepare {
	return func(t *testing.T) (func(f *farm) func() []request, error) {
		dir, err := packages.NPM(t.Context(), "../limiters")
		return func(f *farm) func() []request {
			f.start(f.port(), nil, "node", filepath.Join(dir, script))
			return f.logged
		}, err
	}
}

// goLimits is a limiter of ../limiters/go.
func goLimits(name string) prepare {
	return func(t *testing.T) (func(f *farm) func() []request, error) {
		binary := filepath.Join(t.TempDir(), "limiters")
		err := packages.Go(t.Context(), "../limiters/go", binary)
		return func(f *farm) func() []request {
			f.start(f.port(), nil, binary, name)
			return f.logged
		}, err
	}
}

// flaskLimits is Flask-Limiter by a strategy, of which Debian has a version that has all three.
func flaskLimits(strategy string) prepare {
	return func(t *testing.T) (func(f *farm) func() []request, error) {
		err := packages.Debian(t.Context(), "gunicorn", "python3-flask-limiter")
		return func(f *farm) func() []request {
			dir, port := f.limitersFolder(), f.port()
			// It closes idle connections after 2 s otherwise, while callq sends on them.
			f.start(port, []string{"STRATEGY=" + strategy}, "/usr/bin/gunicorn", "--log-level", "error", "--chdir", dir,
				"-k", "gthread", "--threads", "8", "--keep-alive", "60", "-b", "127.0.0.1:"+port, "flask_app:app")
			return f.logged
		}, err
	}
}

func (f *farm) limitersFolder() string {
	dir, err := filepath.Abs("../limiters")
	if err != nil {
		f.t.Fatal(err)
	}
	return dir
}

// envoyRatelimit has no releases.
const envoyRatelimit = "v1.4.1-0.20260122083618-3fb702589d36"

// envoyLimits is envoyproxy/ratelimit with a Redis of its own, and nginx in Envoy's place.
func envoyLimits(t *testing.T) (func(f *farm) func() []request, error) {
	bin := t.TempDir()
	err := packages.RunIn(t.Context(), bin, "env", "GOWORK=off", "GOFLAGS=", "GOBIN="+bin, "go", "install",
		"github.com/envoyproxy/ratelimit/src/service_cmd@"+envoyRatelimit)
	if err != nil {
		err = fmt.Errorf("%w: %w", packages.ErrMissing, err)
	}
	return func(f *farm) func() []request {
		redis, err := local.StartRedis(t.Context(), local.Redis{})
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { _ = redis.Stop() })
		root := f.t.TempDir()
		rules := filepath.Join(root, "limits", "config")
		if err := os.MkdirAll(rules, 0o750); err != nil {
			f.t.Fatal(err)
		}
		text, err1 := os.ReadFile("../limiters/ratelimit.yaml")
		before, err2 := os.ReadFile("../limiters/nginx-ratelimit.conf")
		if err := errors.Join(err1, err2, os.WriteFile(filepath.Join(rules, "ratelimit.yaml"), text, 0o600)); err != nil {
			f.t.Fatal(err)
		}
		port := f.start(f.port(), []string{
			"DISABLE_STATS=true", "LOG_LEVEL=error", "REDIS_SOCKET_TYPE=unix", "REDIS_URL=" + strings.TrimPrefix(redis.URL(), "unix://"), "RUNTIME_ROOT=" + root,
			"RUNTIME_SUBDIRECTORY=limits", "RUNTIME_WATCH_ROOT=false", "GRPC_PORT=" + f.port(), "DEBUG_PORT=" + f.port(),
		}, filepath.Join(bin, "service_cmd"))
		return f.nginxLogs(strings.Replace(string(before), "PORT", port, 1))
	}, err
}

// logged reads a record: the milliseconds since 1970, nginx's with a point in them, and the status.
func (f *farm) logged() (all []request) {
	file, err := os.Open(f.record)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		at, status, _ := strings.Cut(lines.Text(), " ")
		ms, err := strconv.ParseInt(strings.Replace(at, ".", "", 1), 10, 64)
		if err != nil {
			continue // what HAProxy says of itself
		}
		code, err := strconv.Atoi(status)
		if err != nil {
			f.t.Fatal(err)
		}
		all = append(all, request{at: time.UnixMilli(ms), status: code})
	}
	slices.SortStableFunc(all, func(a, b request) int { return a.at.Compare(b.at) })
	return all
}
