// Package fakeapi is an API with a limit that records every request.
//
// It stands outside what it judges and shares no code with it. A request's arrival is the moment
// at which its header was read, on this process's monotonic clock. It ends just before its answer
// leaves or its connection is hung up on, or, without either, when its client's connection is seen
// to be gone: killed clients end there.
package fakeapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Config says how the API behaves. Zero values mean: no limit, answers at once, always 200.
type Config struct {
	Limit   int           // requests it allows in any Window; above, it answers 429
	Window  time.Duration // sliding
	Latency time.Duration // until it answers
	// Fail says with which status the nth request (from 1) of a call is answered; 0: 200.
	Fail func(call string, nth int) int
	// HangUp says whether it hangs up on the nth request of a call without an answer, once it has
	// been read.
	HangUp func(call string, nth int) bool
	// Slow says how much longer than Latency the nth request of a call takes.
	Slow func(call string, nth int) time.Duration
	// Listener is where it serves; nil: a free port of the loopback interface.
	Listener net.Listener
}

// Request is one request as it arrived.
type Request struct {
	At      time.Time // monotonic, as is Ended
	Ended   time.Time // zero: it is still being answered
	CallID  string
	Attempt string
	Path    string // of its URL
	Reused  bool   // on a connection that had carried another
	Key     string // of the URL's query, as is Cost
	Cost    int    // 1 where the query says none
}

// API is a running API. Its methods may be called at any time, also after Close.
type API struct {
	cfg      Config
	server   *http.Server
	listener net.Listener

	mu       sync.Mutex
	requests []Request      // in the order of arrival
	nth      map[string]int // requests of a call so far
	r429     int
	running  map[string]int // requests that are being answered, by key; "" where they have none
	mostRun  map[string]int // the most of them at once
	allRun   int
	mostAll  int
}

// Start starts an API.
func Start(cfg Config) (*API, error) {
	listener := cfg.Listener
	if listener == nil {
		var err error
		if listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
			return nil, fmt.Errorf("listen for the API: %w", err)
		}
	}
	a := &API{cfg: cfg, listener: listener, nth: map[string]int{}, running: map[string]int{}, mostRun: map[string]int{}}
	a.server = &http.Server{
		Handler: http.HandlerFunc(a.serve), ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, servedKey{}, new(int))
		},
	}
	go a.server.Serve(listener) //nolint:errcheck // it returns when Close is called
	return a, nil
}

// servedKey finds how many requests a connection has carried.
type servedKey struct{}

// URL is where to call it.
func (a *API) URL() string { return "http://" + a.listener.Addr().String() + "/" }

// Close stops it at once.
func (a *API) Close() { _ = a.server.Close() }

func (a *API) serve(w http.ResponseWriter, r *http.Request) {
	served, _ := r.Context().Value(servedKey{}).(*int)
	*served++
	call, query := r.Header.Get("Callq-Call-Id"), r.URL.Query()
	cost, err := strconv.Atoi(query.Get("cost"))
	if err != nil {
		cost = 1
	}
	place, status, nth := a.record(Request{
		CallID: call, Attempt: r.Header.Get("Callq-Attempt"), Path: r.URL.Path, Reused: *served > 1,
		Key: query.Get("key"), Cost: cost,
	})
	defer a.ended(place)
	if a.cfg.HangUp != nil && a.cfg.HangUp(call, nth) {
		panic(http.ErrAbortHandler)
	}
	latency := a.cfg.Latency
	if a.cfg.Slow != nil {
		latency += a.cfg.Slow(call, nth)
	}
	if latency > 0 {
		timer := time.NewTimer(latency)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintln(w, `{"ok":true}`)
}

// record notes a request and says its place in the record and how it is answered.
func (a *API) record(r Request) (place, status, nth int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.At = time.Now() // under the lock: arrivals are in order
	place = len(a.requests)
	a.requests = append(a.requests, r)
	a.nth[r.CallID]++
	nth = a.nth[r.CallID]
	a.running[r.Key]++
	a.allRun++
	a.mostRun[r.Key] = max(a.mostRun[r.Key], a.running[r.Key])
	a.mostAll = max(a.mostAll, a.allRun)
	if a.cfg.Limit > 0 && a.within(r.At, a.cfg.Window) > a.cfg.Limit {
		a.r429++
		return place, http.StatusTooManyRequests, nth
	}
	if a.cfg.Fail != nil {
		if status := a.cfg.Fail(r.CallID, nth); status != 0 {
			return place, status, nth
		}
	}
	return place, http.StatusOK, nth
}

func (a *API) ended(place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.requests[place]
	r.Ended = time.Now()
	a.running[r.Key]--
	a.allRun--
}

// MostAtOnce is the most requests that it was answering at once, in all and of one key.
func (a *API) MostAtOnce() (all, ofKey int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.mostRun {
		ofKey = max(ofKey, n)
	}
	return a.mostAll, ofKey
}

// within counts the requests in (at-window, at].
func (a *API) within(at time.Time, window time.Duration) int {
	n := 0
	for _, r := range slices.Backward(a.requests) {
		if at.Sub(r.At) >= window {
			break
		}
		n++
	}
	return n
}

// Requests are those that arrived, in order.
func (a *API) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// Count is how many requests have arrived.
func (a *API) Count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests)
}

// Count429 is how often it answered 429.
func (a *API) Count429() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.r429
}

// MaxInWindow is the most requests in any (t-window, t].
func (a *API) MaxInWindow(window time.Duration) int {
	return mostIn(a.Requests(), window, func(Request) int { return 1 })
}

// MaxCostInWindow is the most that the requests in any (t-window, t] cost together.
func (a *API) MaxCostInWindow(window time.Duration) int {
	return mostIn(a.Requests(), window, func(r Request) int { return r.Cost })
}

// MaxOfKeyInWindow is the most requests of one key in any (t-window, t].
func (a *API) MaxOfKeyInWindow(window time.Duration) int {
	byKey := map[string][]Request{}
	for _, r := range a.Requests() {
		byKey[r.Key] = append(byKey[r.Key], r)
	}
	most := 0
	for _, requests := range byKey {
		most = max(most, mostIn(requests, window, func(Request) int { return 1 }))
	}
	return most
}

func mostIn(requests []Request, window time.Duration, units func(Request) int) int {
	most, first, sum := 0, 0, 0
	for i, r := range requests {
		sum += units(r)
		for first < i && r.At.Sub(requests[first].At) >= window {
			sum -= units(requests[first])
			first++
		}
		most = max(most, sum)
	}
	return most
}

// Duplicates are the attempts ("call/attempt") of which more than one request arrived.
func (a *API) Duplicates() []string {
	seen := map[string]int{}
	var twice []string
	for _, r := range a.Requests() {
		id := r.CallID + "/" + r.Attempt
		if seen[id]++; seen[id] == 2 {
			twice = append(twice, id)
		}
	}
	return twice
}

// Span is the time from the first arrival to the last.
func (a *API) Span() time.Duration {
	requests := a.Requests()
	if len(requests) == 0 {
		return 0
	}
	return requests[len(requests)-1].At.Sub(requests[0].At)
}

// Use is the share that was used of what a limit of rate per window allows from the first arrival
// to the last: requests / (rate x (span/window + 1)).
func (a *API) Use(rate int, window time.Duration) float64 {
	n := len(a.Requests())
	if n == 0 {
		return 0
	}
	return float64(n) / (float64(rate) * (a.Span().Seconds()/window.Seconds() + 1))
}
