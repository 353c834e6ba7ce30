package fakeapi

import (
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"
)

func start(t *testing.T, cfg Config) *API {
	t.Helper()
	a, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// get makes a request and returns the answer's status; 0: none.
func get(t *testing.T, client *http.Client, a *API, call string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Callq-Call-Id", call)
	r.Header.Set("Callq-Attempt", "1")
	answer, err := client.Do(r)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	return answer.StatusCode
}

func newClient(t *testing.T, keepAlive bool) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: !keepAlive}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	a := start(t, Config{
		Limit: 5, Window: time.Hour,
		Fail: func(call string, nth int) int {
			return map[string]int{"1/2": 503, "9/1": 400}[call+"/"+string(rune('0'+nth))]
		},
		HangUp: func(call string, nth int) bool { return call == "3" && nth == 1 },
	})
	client := newClient(t, false) // net/http would repeat what was hung up on on a reused connection
	var got []int
	for _, call := range []string{"1", "1", "2", "3", "3", "4", "9"} {
		got = append(got, get(t, client, a, call))
	}
	if want := []int{200, 503, 200, 0, 200, 429, 429}; !slices.Equal(got, want) {
		t.Errorf("answers %v, want %v", got, want)
	}
	var calls []string
	for _, r := range a.Requests() {
		calls = append(calls, r.CallID)
	}
	if want := []string{"1", "1", "2", "3", "3", "4", "9"}; !slices.Equal(calls, want) {
		t.Errorf("recorded %v, want %v", calls, want)
	}
	if a.Count429() != 2 || a.MaxInWindow(time.Hour) != 7 {
		t.Errorf("%d of 429, at most %d in a window", a.Count429(), a.MaxInWindow(time.Hour))
	}
	if got, want := a.Duplicates(), []string{"1/1", "3/1"}; !slices.Equal(got, want) {
		t.Errorf("duplicates %v, want %v", got, want)
	}
}

func TestTheWindowSlides(t *testing.T) {
	t.Parallel()
	const window = 100 * time.Millisecond
	a := start(t, Config{Limit: 1, Window: window})
	client := newClient(t, true)
	first := get(t, client, a, "1")
	time.Sleep(time.Until(a.Requests()[0].At.Add(window)))
	second, third := get(t, client, a, "2"), get(t, client, a, "3")
	if first != 200 || second != 200 || third != 429 && a.MaxInWindow(window) > 1 {
		t.Errorf("answers %d, %d, %d", first, second, third)
	}
	if requests := a.Requests(); requests[0].Reused || !requests[1].Reused {
		t.Errorf("reused: %v, %v", requests[0].Reused, requests[1].Reused)
	}
}

// A request ends before its client has the answer; without one, when it is hung up on, or when its
// client is seen to have gone.
func TestEnds(t *testing.T) {
	t.Parallel()
	a := start(t, Config{
		HangUp: func(call string, _ int) bool { return call == "2" },
		Slow: func(call string, _ int) time.Duration {
			return map[string]time.Duration{"1": 30 * time.Millisecond, "3": time.Hour}[call]
		},
	})
	ended := func(i int) time.Time { return a.Requests()[i].Ended }
	if get(t, newClient(t, false), a, "1") != 200 || ended(0).IsZero() || ended(0).Sub(a.Requests()[0].At) < 30*time.Millisecond {
		t.Errorf("answered: %+v", a.Requests()[0])
	}
	if get(t, newClient(t, false), a, "2") != 0 || ended(1).IsZero() {
		t.Errorf("hung up on: %+v", a.Requests()[1])
	}
	await := func(what string, so func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: api\r\nCallq-Call-Id: 3\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	await("the request does not arrive", func() bool { return len(a.Requests()) == 3 })
	if !ended(2).IsZero() {
		t.Error("it ended before its client went")
	}
	_ = conn.(*net.TCPConn).SetLinger(0) // as a killed worker's kernel does
	_ = conn.Close()
	await("the request does not end with its client", func() bool { return !ended(2).IsZero() })
	if all, _ := a.MostAtOnce(); all != 1 {
		t.Errorf("%d at once, want 1", all)
	}
}

func TestLatency(t *testing.T) {
	t.Parallel()
	const latency = 50 * time.Millisecond
	a := start(t, Config{Latency: latency, Slow: func(call string, nth int) time.Duration {
		if call == "2" && nth == 1 {
			return latency
		}
		return 0
	}})
	for i, want := range []time.Duration{latency, 2 * latency} {
		if status := get(t, newClient(t, true), a, []string{"1", "2"}[i]); status != 200 {
			t.Fatal(status)
		}
		if took := time.Since(a.Requests()[i].At); took < want {
			t.Errorf("answered after %s", took)
		}
	}
}

func TestFiguresOfATimeline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		ms     []int
		window time.Duration
		most   int
		use    float64 // of 2 per window
	}{
		{name: "none", window: time.Second},
		{name: "one", ms: []int{5}, window: time.Second, most: 1, use: .5},
		{name: "just within a window", ms: []int{0, 500, 999}, window: time.Second, most: 3, use: 3 / (2 * 1.999)},
		{name: "a window apart is outside it", ms: []int{0, 500, 1000}, window: time.Second, most: 2, use: 3. / 4},
		{name: "the peak is in the middle", ms: []int{0, 900, 950, 1000, 1800, 2500}, window: time.Second, most: 4, use: 6 / 7.},
		{name: "at one moment", ms: []int{7, 7, 7}, window: time.Second, most: 3, use: 1.5},
		{name: "no window", ms: []int{0, 1}, window: 0, most: 1, use: -1},
	} {
		a := &API{}
		now := time.Now()
		for _, ms := range c.ms {
			a.requests = append(a.requests, Request{At: now.Add(time.Duration(ms) * time.Millisecond)})
		}
		if got := a.MaxInWindow(c.window); got != c.most {
			t.Errorf("%s: at most %d in a window, want %d", c.name, got, c.most)
		}
		if got := a.Use(2, c.window); c.use >= 0 && (got < c.use-1e-9 || got > c.use+1e-9) {
			t.Errorf("%s: use %v, want %v", c.name, got, c.use)
		}
	}
}
