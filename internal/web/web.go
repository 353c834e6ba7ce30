// Package web answers an orchestrator and Prometheus for a running callq.
//
// /livez depends on nothing. /readyz answers within the checks' timeout. Neither tells a secret.
package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config is what the handler checks and shows.
type Config struct {
	Checks  []Check                // all must pass for /readyz
	Metrics prometheus.Gatherer    // what /metrics shows
	Pages   http.Handler           // every other path; nil: none
	Known   func(host string) bool // Host headers that all but /livez answer, see [KnownHosts]; nil: all
}

const checkWithin = 2 * time.Second

// Check finds one reason not to be ready. Run returns when its context ends, and its error is shown.
type Check struct {
	Name string
	Run  func(context.Context) error
}

// New returns the handler of /livez, /readyz and /metrics, which work whatever the pages do.
func New(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
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
				"Of a proxy before it, set http.hosts.", r.Host), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// KnownHosts returns which Host headers to answer. A server on loopback relies on no other machine reaching it. But a browser
// on that machine runs others' pages, and DNS rebinding lets such a page read from 127.0.0.1 under its own name. It
// still sends that name as the Host.
func KnownHosts(address net.Addr, names []string) func(host string) bool {
	tcp, ok := address.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() {
		return func(string) bool { return true }
	}
	configured := map[string]bool{}
	for _, name := range names {
		configured[hostName(name)] = true
	}
	return func(host string) bool {
		name := hostName(host)
		if ip, err := netip.ParseAddr(name); err == nil {
			return ip.Unmap().IsLoopback()
		}
		return name == "localhost" || strings.HasSuffix(name, ".localhost") || name != "" && configured[name]
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

func (cfg Config) readyz(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if err := cfg.problems(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// problems runs all checks at once, and returns what failed, a line each.
func (cfg Config) problems(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	errs := make([]error, len(cfg.Checks))
	var all sync.WaitGroup
	for i, check := range cfg.Checks {
		all.Go(func() {
			if err := check.Run(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", check.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
