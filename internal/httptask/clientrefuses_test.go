package httptask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// When the handler has ended nothing more is written, whatever it has left behind.
//
//callq:guarantee 2
func TestClientEndsWithItsHandler(t *testing.T) {
	t.Parallel()
	arrived, written, finish := make(chan string, 10), make(chan struct{}, 10), make(chan struct{})
	defer close(finish)
	server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
		arrived <- r.URL.Path
		if r.URL.Path != "/slow" {
			<-written // else its answer proves nothing
			w.WriteHeader(map[string]int{"/body": http.StatusOK, "/408": http.StatusRequestTimeout}[r.URL.Path])
			w.(http.Flusher).Flush()
		}
		select {
		case <-finish:
		case <-r.Context().Done(): // the connection was reset
			arrived <- "gone"
		}
	})
	h := newTestTask(t, Config{})

	t.Run("waiting for an answer", func(t *testing.T) {
		c := clientOf(t, h, bound)
		failed := make(chan error, 1)
		go func() { _, err := c.do("GET", server.URL+"/slow", ""); failed <- err }()
		receive(t, arrived)
		s := c.End()
		if !s.Wrote || !s.answered.IsZero() {
			t.Errorf("seen %+v", s)
		}
		if err := receive(t, failed); !errors.Is(err, errHandlerEnded) {
			t.Errorf("the request ended with %v", err)
		}
		receive(t, arrived)
	})
	for path, proves := range map[string]bool{"/body": true, "/408": false} {
		t.Run("reading "+path, func(t *testing.T) {
			c := clientOf(t, h, bound)
			r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
			go func() { eventually(t, "the request is written", c.isWritten); written <- struct{}{} }()
			answer, err := c.HTTP.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			receive(t, arrived)
			if s := c.End(); !s.Wrote || s.answered.IsZero() == proves {
				t.Errorf("seen %+v", s)
			}
			receive(t, arrived)
			if _, err := io.ReadAll(answer.Body); err == nil {
				t.Error("the answer could still be read to its end")
			}
		})
	}
	t.Run("connecting", func(t *testing.T) {
		c := clientOf(t, h, bound)
		hold, begun := make(chan struct{}), make(chan struct{}, 100)
		h := newTestTask(t, Config{Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			begun <- struct{}{}
			<-hold
			return nil, errors.New("no name server")
		}}})
		c.task = h
		failed := make(chan error, 1)
		go func() { _, err := c.do("GET", "http://api.test", ""); failed <- err }()
		receive(t, begun)
		if s := c.End(); s.Wrote || !s.Used {
			t.Errorf("seen %+v", s)
		}
		if err := receive(t, failed); !errors.Is(err, errHandlerEnded) {
			t.Errorf("the request ended with %v", err)
		}
		close(hold)
	})
	t.Run("at any moment", func(t *testing.T) {
		var sent, unsent sync.Map
		quick := serveHTTP(t, false, func(_ http.ResponseWriter, r *http.Request) { sent.Store(r.URL.Path, true) })
		for i := range 300 {
			path := fmt.Sprint("/", i)
			c := clientOf(t, h, bound)
			over := make(chan struct{})
			go func() { _, _ = c.do("GET", quick.URL+path, ""); close(over) }()
			for until := time.Now().Add(time.Duration(i) * time.Microsecond); time.Now().Before(until); {
			}
			if s := c.End(); !s.Wrote {
				unsent.Store(path, s)
			}
			<-over
		}
		quick.Close() // what it has taken in is served
		unsent.Range(func(path, s any) bool {
			if _, was := sent.Load(path); was {
				t.Errorf("%s was sent, though seen %+v", path, s)
			}
			return true
		})
	})
}

// What the client refuses is not sent, and will never be: the call fails for good.
func TestClientRefuses(t *testing.T) {
	t.Parallel()
	server, served := counting(t, false)
	open := Config{AllowPrivate: true}
	for name, c := range map[string]struct {
		cfg    Config
		change func(*http.Request)
		want   string
	}{
		"another host":            {Config{AllowPrivate: true, Hosts: []string{"api.example.com"}}, nil, "the host is not in http_task.hosts"},
		"another Host":            {open, func(r *http.Request) { r.Host = "api.example.com" }, "must be that of its URL"},
		"a private address":       {Config{}, nil, "has the private address 127.0.0.1"},
		"Expect":                  {open, func(r *http.Request) { r.Header.Set("Expect", "100-continue") }, "about the connection"},
		"Upgrade":                 {open, func(r *http.Request) { r.Header["upgrade"] = []string{"websocket"} }, "about the connection"},
		"CONNECT":                 {open, func(r *http.Request) { r.Method = "CONNECT" }, "CONNECT"},
		"a header of 16 KiB":      {open, func(r *http.Request) { r.Header.Set("X", strings.Repeat("x", 16<<10)) }, "does not fit one write"},
		"a header with a newline": {open, func(r *http.Request) { r.Header.Set("X", "a\nb") }, "invalid header field value"},
	} {
		t.Run(name, func(t *testing.T) {
			client := clientOf(t, newTaskOf(t, c.cfg), bound)
			body := &closing{Reader: strings.NewReader("x")}
			r, _ := http.NewRequestWithContext(t.Context(), "POST", server.URL, body)
			if c.change != nil {
				c.change(r)
			}
			answer, err := client.HTTP.Do(r)
			if err == nil {
				_ = answer.Body.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || isNotSent(err) || !isPermanent(err) && !strings.HasPrefix(name, "a header") {
				t.Errorf("got %v", err)
			}
			if s := client.End(); s.Wrote {
				t.Errorf("seen %+v", s)
			}
			if !body.closed.Load() {
				t.Error("the body was not closed")
			}
		})
	}
	if n := served.Load(); n > 0 {
		t.Errorf("%d requests served", n)
	}
}

type closing struct {
	io.Reader
	closed atomic.Bool
}

func (c *closing) Close() error { c.closed.Store(true); return nil }

// A request carries what the http task's do, unless the handler set it; the handler's own is not changed.
func TestClientsHeaders(t *testing.T) {
	t.Parallel()
	requests := make(chan *http.Request, 1)
	server := serveHTTP(t, true, func(_ http.ResponseWriter, r *http.Request) { requests <- r })
	h := newTestTask(t, Config{TLS: certificatesOf(server)})
	for _, c := range []struct {
		set  map[string]string
		want string
	}{
		{nil, "7 2 callq-7 callq"},
		{map[string]string{"Idempotency-Key": "mine", "Callq-Call-Id": "8", "Callq-Attempt": "9", "User-Agent": "me"}, "8 9 mine me"},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL, nil)
		for name, value := range c.set {
			r.Header.Set(name, value)
		}
		answer, err := clientOf(t, h, bound).HTTP.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		seen := receive(t, requests).Header
		var got []string
		for _, name := range []string{"Callq-Call-Id", "Callq-Attempt", "Idempotency-Key", "User-Agent"} {
			got = append(got, seen.Get(name))
		}
		if strings.Join(got, " ") != c.want || len(r.Header) != len(c.set) {
			t.Errorf("got %q, want %q; the handler's has %v", got, c.want, r.Header)
		}
	}
}

// A redirect is an answer. To follow it would be a second request, which is refused.
func TestClientFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	h := newTestTask(t, Config{})
	c := clientOf(t, h, bound)
	if status, err := c.do("GET", server.URL, ""); err != nil || status != http.StatusTemporaryRedirect {
		t.Errorf("got %d, %v", status, err)
	}
	c = clientOf(t, h, bound)
	c.HTTP.CheckRedirect = nil
	if _, err := c.do("GET", server.URL, ""); !errors.Is(err, errSecondRequest) {
		t.Errorf("followed: %v", err)
	}
	if n := served.Load(); n != 2 {
		t.Errorf("%d requests served, want 2", n)
	}
}
