//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/verification/fakeapi"
)

// request is one that an API answered, as the API has written it down.
type request struct {
	at     time.Time
	status int
	key    string    // of the URL's query
	named  time.Time // when to come again, by a refusal's Retry-After; zero: it has none
}

func (r request) refused() bool { return r.status != http.StatusOK }

// An API refuses nothing of a limit that is spread, or has its tolerance.
func TestAPIsThatFit(t *testing.T) {
	t.Parallel()
	for limit, how := range map[string]string{
		"rate: 100/s, spread: true":                             "limit_req zone=z; limit_req_status 429;",
		"rate: 100/s, algorithm: leaky_bucket, tolerance: 50ms": "limit_req zone=z burst=5 nodelay; limit_req_status 429;",
	} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			const calls = 500
			s := newAPIStack(t, "limits: {api: {"+limit+"}}\nqueues: {default: {limits: [api]}}")
			f := &farm{t: t, record: filepath.Join(t.TempDir(), "arrivals"), url: s.api.URL()}
			serve, err := nginxLimits(how)(t)
			if err != nil {
				t.Fatal(err)
			}
			read := serve(f)
			s.spawn("serve")
			s.insertURLs(f.url, calls)
			s.awaitEnds(2 * time.Minute)
			all := s.allOf(read)
			t.Log(line(limit, all, calls, 100))
			if n := refusals(all); n > 0 {
				t.Errorf("%d of %d requests were refused", n, len(all))
			}
			s.noFailures(calls, 0)
			s.verify()
		})
	}
}

// closedFor is how long the doors of the APIs below stay closed, from their first request on.
const closedFor = 25 * time.Second

// An API that refuses everything for a while is asked by a burst and then by probes, one at a time. No call fails of it, all are
// made after it opens, and soon where it named the time.
func TestAPIsThatClose(t *testing.T) {
	t.Parallel()
	for name, names := range map[string]bool{"429, bare": false, "429, Retry-After": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const calls, rate = 200, 20
			var opens time.Time
			api := serveAPI(t, func(_ string, now time.Time) (bool, time.Duration) {
				if opens.IsZero() {
					opens = now.Add(closedFor)
				}
				if !names {
					return now.Before(opens), 0
				}
				return now.Before(opens), opens.Sub(now)
			})
			s := newAPIStack(t, fmt.Sprintf("limits: {api: {rate: %d/1s}}\nqueues: {default: {limits: [api]}}", rate))
			s.spawn("serve")
			s.insertURLs(api.url, calls)
			s.awaitEnds(5 * time.Minute)

			all := s.allOf(api.requests)
			opened := all[0].at.Add(closedFor)
			for _, r := range all {
				if r.named.After(opened) {
					opened = r.named
				}
			}
			made := slices.DeleteFunc(slices.Clone(all), request.refused)
			first, full := made[0].at.Sub(opened), made[rate-1].at.Sub(opened)
			t.Log(line(name, all, calls, rate))
			t.Logf("| %s | first after it opened: %.2f s | %d/s reached: %.2f s | all done: %.2f s |", name, first.Seconds(), rate,
				full.Seconds(), made[len(made)-1].at.Sub(opened).Seconds())
			s.noFailures(calls, refusals(all))
			if n := refusals(all); n > 2*rate {
				t.Errorf("%d requests at a closed door; %d and some probes are expected", n, rate)
			}
			// Two seconds are what callq is meant to take; five are for a busy machine.
			if names && (first > 5*time.Second || full > 5*time.Second) {
				t.Errorf("the first request came %s after the time that was named, and %d a second were reached after %s", first, rate, full)
			}
			s.verify()
		})
	}
}

// Under a limit per key each key waits for the time that was named to it, and is asked once before.
func TestAPIsThatCloseKeys(t *testing.T) {
	t.Parallel()
	keys := 100
	if *figures > 1 {
		keys = 1000
	}
	opens := map[string]time.Time{}
	api := serveAPI(t, func(key string, now time.Time) (bool, time.Duration) {
		if _, known := opens[key]; !known {
			n, _ := strconv.Atoi(key)
			opens[key] = now.Add(closedFor - time.Duration(n%16)*time.Second)
		}
		return now.Before(opens[key]), opens[key].Sub(now)
	})
	s := newAPIStack(t, "limits: {api: {rate: 20/1s, per: key}}\nqueues: {default: {limits: [api]}}")
	s.spawn("serve")
	s.exec(`INSERT INTO call_queue (key, call_data) SELECT n::text, jsonb_build_object('url', $1::text || '?key=' || n) FROM generate_series(1, $2::int) n`,
		api.url, keys)
	s.awaitEnds(5 * time.Minute)

	all := s.allOf(api.requests)
	named, asked := map[string]time.Time{}, map[string]int{}
	var late []time.Duration
	for _, r := range all {
		if r.refused() {
			asked[r.key]++
			named[r.key] = r.named
		} else {
			late = append(late, r.at.Sub(named[r.key]))
		}
	}
	slices.Sort(late)
	t.Log(line(fmt.Sprintf("429, Retry-After, %d keys", keys), all, keys, 0))
	t.Logf("| after the time that a key was named | median %.2f s | most %.2f s |", late[len(late)/2].Seconds(), late[len(late)-1].Seconds())
	s.noFailures(keys, refusals(all))
	for key, n := range asked {
		if n > 1 {
			t.Errorf("%d requests at the closed door of key %s", n, key)
		}
	}
	if most := late[len(late)-1]; most > 5*time.Second {
		t.Errorf("a key was asked again %s after the time that was named to it", most)
	}
	s.verify()
}

// An API that refuses for ever fails calls in the end, which say why.
func TestAPIsThatRefuseForEver(t *testing.T) {
	t.Parallel()
	const calls, most = 5, 3
	api := serveAPI(t, func(string, time.Time) (bool, time.Duration) { return true, 0 })
	// Without retry_after the probes of so many calls are minutes apart.
	s := newAPIStack(t, fmt.Sprintf("limits: {api: {rate: 20/1s, retry_after: 2s}}\nqueues: {default: {limits: [api], max_refusals: %d}}", most))
	s.spawn("serve")
	s.insertURLs(api.url, calls)
	s.awaitEnds(5 * time.Minute)

	all := s.allOf(api.requests)
	t.Log(line("429 for ever", all, calls, 0))
	if n := s.count(fmt.Sprintf(`SELECT count(*) FROM call_queue WHERE status = 'failed' AND error_message LIKE '%%429%%refused %d times%%max_refusals%%'`, most)); n != calls {
		t.Errorf("%d of %d calls failed and say that they were refused %d times", n, calls, most)
	}
	if len(all) != calls*most {
		t.Errorf("%d requests; %d calls were to be refused %d times each", len(all), calls, most)
	}
	s.verify()
}

// newAPIStack has the default worker.
func newAPIStack(t *testing.T, rules string) *stack {
	t.Helper()
	s := newStack(t, rules, fakeapi.Config{})
	config, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	config = []byte(strings.Replace(string(config), "worker: {concurrency: 20, shutdown_timeout: 10s}", "", 1))
	if err := os.WriteFile(s.config, config, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stack) insertURLs(url string, n int) {
	s.t.Helper()
	s.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, $2)`, url, n)
}

func (s *stack) awaitEnds(within time.Duration) {
	s.t.Helper()
	s.await(within, `SELECT NOT EXISTS (SELECT FROM call_queue WHERE status NOT IN ('done', 'failed'))`)
}

// allOf reads an API's record once it has all that the ledger has: proxies write theirs after the answer.
func (s *stack) allOf(read func() []request) []request {
	s.t.Helper()
	sent := s.count(`SELECT count(*) FROM call_attempts WHERE outcome <> 'not_sent'`)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	looks := time.NewTicker(50 * time.Millisecond)
	defer looks.Stop()
	all := read()
	for len(all) < sent && ctx.Err() == nil {
		select {
		case <-looks.C:
			all = read()
		case <-ctx.Done():
		}
	}
	if len(all) != sent {
		s.t.Errorf("the API answered %d requests; %d are in the ledger", len(all), sent)
	}
	if len(all) == 0 {
		s.t.Fatal("the API was never asked")
	}
	return all
}

// noFailures checks that all calls are done, that nothing counts as a failure, and that all refusals are in the ledger as such.
func (s *stack) noFailures(calls, refused int) {
	s.t.Helper()
	if n := s.count(`SELECT count(*) FROM call_queue WHERE status = 'done' AND failed_count = 0`); n != calls {
		s.t.Errorf("%d of %d calls were made without a failure", n, calls)
	}
	if n := s.count(`SELECT count(*) FROM call_attempts WHERE outcome = 'refused'`); n != refused {
		s.t.Errorf("%d refusals are in the ledger; the API refused %d requests", n, refused)
	}
}

func refusals(all []request) (n int) {
	for _, r := range all {
		if r.refused() {
			n++
		}
	}
	return n
}

// line is what is printed of an API: refused, requests, seconds, and the use of its rate.
func line(name string, all []request, calls, rate int) string {
	took := max(1, all[len(all)-1].at.Sub(all[0].at).Seconds())
	use := ""
	if rate > 0 {
		use = fmt.Sprintf(" %.0f %% |", 100*float64(calls)/took/float64(rate))
	}
	return fmt.Sprintf("| %s | %d calls | %d refused | %d requests | %.1f s |%s", name, calls, refusals(all), len(all), took, use)
}

// api is one in this process.
type api struct {
	url string
	mu  sync.Mutex
	all []request
}

// serveAPI starts an API that answers 429 where refuse says so, with Retry-After if there is a time to wait, rounded up. refuse is
// asked one request after the other.
func serveAPI(t *testing.T, refuse func(key string, now time.Time) (bool, time.Duration)) *api {
	t.Helper()
	a := &api{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		r := request{at: time.Now(), status: http.StatusOK, key: q.URL.Query().Get("key")}
		if refused, wait := refuse(r.key, r.at); refused {
			r.status = http.StatusTooManyRequests
			if wait > 0 {
				seconds := int(math.Ceil(wait.Seconds()))
				r.named = r.at.Add(time.Duration(seconds) * time.Second)
				w.Header().Set("Retry-After", strconv.Itoa(seconds))
			}
		}
		a.all = append(a.all, r)
		w.WriteHeader(r.status)
	}))
	t.Cleanup(server.Close)
	a.url = server.URL + "/"
	return a
}

func (a *api) requests() []request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}
