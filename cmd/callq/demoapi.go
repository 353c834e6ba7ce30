package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/callq/callq/internal/limit"
)

// demoAPI is an HTTP API with a limit. It counts what arrives on its own clock, and shares no code with what
// keeps the limit.
type demoAPI struct {
	rate    limit.Rate
	latency time.Duration // until it answers
	url     string
	server  *http.Server

	mu       sync.Mutex
	arrivals []time.Time // in order
	r429     int         // answers 429
}

// startDemoAPI starts an API on a free port of the loopback interface.
func startDemoAPI(ctx context.Context, rate limit.Rate, latency time.Duration) (*demoAPI, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	a := &demoAPI{rate: rate, latency: latency, url: "http://" + listener.Addr().String() + "/"}
	a.server = &http.Server{Handler: a, ReadHeaderTimeout: time.Minute}
	go func() { _ = a.server.Serve(listener) }() // until close
	return a, nil
}

func (a *demoAPI) close() { _ = a.server.Close() }

func (a *demoAPI) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	allowed := a.arrived()
	time.Sleep(a.latency)
	w.Header().Set("Content-Type", "application/json")
	if !allowed {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	fmt.Fprintln(w, `{"ok":true}`)
}

// arrived records a request and reports whether the limit allows it.
func (a *demoAPI) arrived() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now() // under the lock: arrivals are in order
	a.arrivals = append(a.arrivals, now)
	if a.within(now) <= int(a.rate.Units) {
		return true
	}
	a.r429++
	return false
}

// within counts the requests in (at-window, at].
func (a *demoAPI) within(at time.Time) int {
	n := 0
	for _, arrival := range slices.Backward(a.arrivals) {
		if at.Sub(arrival) >= a.rate.Window {
			break
		}
		n++
	}
	return n
}

// seen returns the requests of the last window and the answers 429.
func (a *demoAPI) seen() (inWindow, r429 int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.within(time.Now()), a.r429
}

// verdict judges what has arrived. What is used is its share of what the limit allows from the first request
// to the last.
func (a *demoAPI) verdict() demoVerdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := demoVerdict{Requests: len(a.arrivals), R429: a.r429}
	first := 0
	for i, arrival := range a.arrivals {
		for arrival.Sub(a.arrivals[first]) >= a.rate.Window {
			first++
		}
		v.Max = max(v.Max, i-first+1)
	}
	if v.Requests > 0 {
		span := a.arrivals[v.Requests-1].Sub(a.arrivals[0])
		v.Used = float64(v.Requests) / (float64(a.rate.Units) * (span.Seconds()/a.rate.Window.Seconds() + 1))
	}
	return v
}
