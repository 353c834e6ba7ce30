// Package web answers an orchestrator and Prometheus for a running callq.
//
// /livez depends on nothing. /readyz answers within the checks' timeout, whatever hangs. Neither tells a secret.
package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config says what the handler checks and shows.
type Config struct {
	Checks  []Check                // all must pass for /readyz
	Metrics prometheus.Gatherer    // what /metrics shows
	Pages   http.Handler           // every other path; nil: none
	Known   func(host string) bool // Host headers that all but /livez answer, see [KnownHosts]; nil: all
}

const checkWithin = 2 * time.Second

// Check finds one reason not to be ready. Run should return when its context ends. Its error is shown.
type Check struct {
	Name string
	Run  func(context.Context) error
}

// New returns the handler of /livez, /readyz and /metrics, which work whatever the pages do.
func New(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /readyz", cfg.known(http.HandlerFunc(cfg.readyz)))
	mux.Handle("GET /metrics", cfg.known(promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{})))
	if cfg.Pages != nil {
		mux.Handle("/", cfg.known(cfg.Pages))
	}
	return mux
}

// known refuses requests for a host name that is not ours.
func (cfg Config) known(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cfg.Known != nil && !cfg.Known(r.Host) {
			http.Error(w, fmt.Sprintf("This callq listens on loopback, and is not known as %q there: ask for localhost or 127.0.0.1. "+
				"A proxy before it should send that as the Host.", r.Host), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// KnownHosts says which Host headers to answer. A server on loopback relies on nobody else reaching it. But a browser
// on that machine runs others' pages, and DNS rebinding lets such a page read from 127.0.0.1 under its own name. It
// still sends that name as the Host.
func KnownHosts(address net.Addr, listen string) func(host string) bool {
	tcp, ok := address.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() {
		return func(string) bool { return true }
	}
	configured := hostName(listen)
	return func(host string) bool {
		name := hostName(host)
		if ip, err := netip.ParseAddr(name); err == nil {
			return ip.Unmap().IsLoopback()
		}
		return name == "localhost" || strings.HasSuffix(name, ".localhost") || name != "" && name == configured
	}
}

// hostName is the name or address in a host, without its port: through a tunnel the port differs.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
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
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	type answer struct {
		name string
		err  error
	}
	found, answers := map[string]string{}, make(chan answer, len(cfg.Checks))
	for _, check := range cfg.Checks {
		found[check.Name] = fmt.Sprintf("no answer within %s", checkWithin)
		go func() { answers <- answer{check.Name, check.Run(ctx)} }()
	}
	for range cfg.Checks {
		select {
		case a := <-answers:
			if delete(found, a.name); a.err != nil {
				found[a.name] = a.err.Error()
			}
		case <-ctx.Done():
			return found
		}
	}
	return found
}
