// Package web answers an orchestrator and Prometheus for a running callq.
//
// /livez depends on nothing. /readyz answers within the checks' timeout, whatever hangs. Neither tells a secret.
package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config says what the handler checks and shows.
type Config struct {
	Checks  []Check                // all must pass for /readyz
	Metrics prometheus.Gatherer    // nil: no /metrics
	Pages   http.Handler           // every other path; nil: none
	Known   func(host string) bool // Host headers that /readyz and /metrics answer, see [KnownHosts]; nil: all
	Timeout time.Duration          // of each check; default 2 s
}

// Check finds one reason not to be ready. Run should return when its context ends. Its error is shown.
type Check struct {
	Name string
	Run  func(context.Context) error
}

// New returns the handler of /livez, /readyz and /metrics, which work whatever the pages do.
func New(cfg Config) http.Handler {
	if cfg.Timeout == 0 {
		cfg.Timeout = 2 * time.Second
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /readyz", cfg.known(http.HandlerFunc(cfg.readyz)))
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", cfg.known(promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{})))
	}
	if cfg.Pages != nil {
		mux.Handle("/", cfg.Pages)
	}
	return mux
}

// known refuses requests for a host name that is not ours.
func (cfg Config) known(next http.Handler) http.Handler {
	if cfg.Known == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !cfg.Known(r.Host) {
			http.Error(w, Unknown(r.Host), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// readiness is the answer of /readyz, with the error of each check that failed.
type readiness struct {
	Ready    bool              `json:"ready"`
	Problems map[string]string `json:"problems,omitempty"`
}

func (cfg Config) readyz(w http.ResponseWriter, r *http.Request) {
	answer := readiness{Problems: cfg.problems(r.Context())}
	answer.Ready = len(answer.Problems) == 0
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !answer.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(answer) // fails only if the client has gone
}

// problems runs all checks at once. It leaves behind a check that does not end in time.
func (cfg Config) problems(ctx context.Context) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	found := map[string]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, check := range cfg.Checks {
		all.Go(func() {
			result := make(chan error, 1)
			go func() { result <- check.Run(ctx) }()
			var err error
			select {
			case err = <-result:
			case <-ctx.Done():
				err = fmt.Errorf("no answer within %s", cfg.Timeout)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				found[check.Name] = err.Error()
			}
		})
	}
	all.Wait()
	return found
}
