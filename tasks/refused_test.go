package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/tasks"
)

// closing is an API that refuses until it opens.
type closing struct {
	url      string
	open     atomic.Bool
	requests atomic.Int64
}

func newClosing(t *testing.T, refuse http.HandlerFunc) *closing {
	t.Helper()
	c := &closing{}
	c.url = serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !c.open.Load() {
			c.requests.Add(1)
			refuse(w, r)
		}
	}).URL
	return c
}

func (c *closing) call() callqueue.Call { return callqueue.Call{Data: map[string]any{"url": c.url}} }

func status(code int, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			w.Header().Set(name, value)
		}
		w.WriteHeader(code)
	}
}

// An API that refuses, whatever it says, is asked by a burst and then by probes. No call fails of it, and all are made once it opens.
func TestRefusalsAreNoFailures(t *testing.T) {
	t.Parallel()
	api := newClosing(t, status(429))
	b := newBench(t, nil)
	for range 20 {
		b.insertCall(api.call())
	}
	b.await(`SELECT spell = '2 s' FROM callq.call_pauses WHERE what = 'limit' AND name = 'api'`) // one probe was refused
	if n := api.requests.Load(); n > 5 {                                                         // four at once, and the probe
		t.Errorf("%d requests at a closed door", n)
	}
	api.open.Store(true)
	b.await(`SELECT count(*) = 20 FROM call_queue WHERE status = 'done' AND failed_count = 0`)
	b.await(`SELECT count(*) = $1 AND bool_and(code = 429 AND error LIKE 'refused: GET %: 429 Too Many Requests' AND arrived_by IS NOT NULL AND charged <> '[]')
		FROM call_attempts WHERE outcome = 'refused'`, api.requests.Load())
	b.await(`SELECT count(*) = 0 FROM callq.call_pauses`)
	b.verify()
}

// ready waits until the rules are in force, for a test that changes them.
func (b *bench) ready() *bench {
	b.t.Helper()
	b.await(`SELECT count(*) = 2 FROM callq.call_queues`)
	b.await(`SELECT complete_since IS NOT NULL FROM callq.call_limits`)
	return b
}

// What is a refusal, and what closes for how long.
func TestWhatIsARefusal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code    int
		headers []string
		outcome string // of the first attempt
		shut    string // for how long limit api is; "": it is not
	}{
		"429 alone":                      {429, nil, "refused", "1 s"},
		"429 that names a time":          {429, []string{"Retry-After: 300"}, "refused", "5 min"},
		"429 that names the past":        {429, []string{"Retry-After: 0"}, "refused", "1 s"},
		"429 that cannot be read":        {429, []string{"Retry-After: soon"}, "refused", "1 s"},
		"503 that names a time":          {503, []string{"Retry-After: 300"}, "refused", "5 min"},
		"503 alone":                      {503, nil, "error", ""},
		"529 with a limit that is empty": {529, []string{"x-ratelimit-remaining: 0", "x-ratelimit-reset: 300"}, "refused", "5 min"},
		"403 as GitHub's":                {403, []string{"x-ratelimit-remaining: 0", fmt.Sprintf("x-ratelimit-reset: %d", time.Now().Add(5*time.Minute).Unix())}, "refused", "5 min"},
		"403 alone":                      {403, nil, "permanent", ""},
		"413 that names a time":          {413, []string{"Retry-After: 300"}, "refused", "5 min"},
		"504 that names a time":          {504, []string{"Retry-After: 300"}, "refused", "5 min"},
		"500 that names a time":          {500, []string{"Retry-After: 300"}, "error", ""},
		"a wait that is too long":        {429, []string{"Retry-After: 999999999999"}, "refused", "1 h"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil)
			id := b.insertCall(newClosing(t, status(c.code, c.headers...)).call())
			b.await(`SELECT outcome = $2 FROM call_attempts WHERE call_id = $1 AND attempt = 1`, id, c.outcome)
			b.await(`SELECT coalesce((SELECT until - at BETWEEN 0.2 * $1::interval AND $1::interval FROM callq.call_pauses), false) = ($2 <> '')`, or(c.shut, "0"), c.shut)
		})
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// Which limits an answer closes, where several count the call.
func TestWhatARefusalCloses(t *testing.T) {
	t.Parallel()
	api := newClosing(t, func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.URL.Query() {
			w.Header().Set(name, values[0])
		}
		w.WriteHeader(429)
	})
	b := newBench(t, nil).ready()
	b.exec(`INSERT INTO callq.call_limits SELECT (jsonb_populate_record(l, r)).* FROM callq.call_limits l, jsonb_array_elements('[
		{"name": "requests"}, {"name": "keyed", "per_key": true}, {"name": "elsewhere", "hosts": ["api.example.com"]},
		{"name": "mine", "headers": {"wait": ["X-My-Reset"]}}, {"name": "deaf", "headers": {"off": ["Retry-After"]}}, {"name": "at once", "window_size": "0"}]') r`)
	b.exec(`UPDATE callq.call_queues SET limits = '{api,requests,keyed,elsewhere,mine,deaf,at once}'`)
	for name, c := range map[string]struct{ answer, shut string }{
		"all that count it":       {"", "api; deaf; keyed k; mine; requests"},
		"the one that is named":   {"x-ratelimit-reset-requests=60s&x-ratelimit-remaining-requests=0", "requests"},
		"the one whose header is": {"x-my-reset=60", "mine"},
		"those that listen":       {"retry-after=60", "api; deaf; keyed k; mine; requests"},
	} {
		b.exec(`WITH q AS (DELETE FROM call_queue) DELETE FROM callq.call_pauses`)
		id := b.insertCall(callqueue.Call{Key: "k", Data: map[string]any{"url": api.url + "?" + c.answer}})
		b.await(`SELECT outcome = 'refused' FROM call_attempts WHERE call_id = $1 AND attempt = 1`, id)
		var shut string
		if err := b.pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(rtrim(name || ' ' || key), '; ' ORDER BY name), '') FROM callq.call_pauses`).Scan(&shut); err != nil {
			t.Fatal(err)
		}
		if shut != c.shut {
			t.Errorf("%s: closed are %q, want %q", name, shut, c.shut)
		}
	}
}

// Where a queue says so, a refusal is an error as any other; and refusals have an end.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	api := newClosing(t, status(429))
	b := newBench(t, nil).ready()
	b.exec(`UPDATE callq.call_queues SET on_refused = 'retry'`)
	id := b.insertCall(api.call())
	b.await(`SELECT status = 'failed' AND failed_count = 2 FROM call_queue WHERE id = $1`, id)
	b.await(`SELECT count(*) = 2 AND bool_and(outcome = 'error') FROM call_attempts WHERE call_id = $1`, id)
	b.await(`SELECT count(*) = 0 FROM callq.call_pauses`)

	b.exec(`UPDATE callq.call_queues SET on_refused = 'close', max_refusals = 2`)
	id = b.insertCall(api.call())
	b.await(`SELECT status = 'failed' AND failed_count = 1 AND error_message LIKE '%refused 2 times, the most that max_refusals allows' FROM call_queue WHERE id = $1`, id)

	// A queue without limits, or one that no answer closes: the call waits by itself.
	b.exec(`UPDATE callq.call_queues SET max_refusals = 4, limits = '{}'`)
	id = b.insertCall(api.call())
	b.await(`SELECT status = 'failed' AND failed_count = 1 FROM call_queue WHERE id = $1`, id)
	b.await(`SELECT min(claimed_at - ended) >= interval '10 ms' FROM (SELECT claimed_at, lag(finished_at) OVER (ORDER BY attempt) AS ended FROM call_attempts WHERE call_id = $1) a`, id)
}

// A handler that was refused says so itself.
func TestHandlersAreRefused(t *testing.T) {
	t.Parallel()
	var open atomic.Bool
	b := newBench(t, map[string]tasks.Handler{"asks": func(context.Context, *tasks.Call) error {
		if open.Load() {
			return nil
		}
		return tasks.Refused(time.Minute, errors.New("come back in a minute"))
	}})
	id := b.insert("asks")
	b.await(`SELECT until - at > interval '59 s' AND reason LIKE '%come back in a minute' FROM callq.call_pauses WHERE name = 'api'`)
	b.await(`SELECT status = 'new' AND failed_count = 0 FROM call_queue WHERE id = $1`, id)
	open.Store(true)
	b.exec(`UPDATE callq.call_pauses SET until = clock_timestamp()`)
	b.await(`SELECT status = 'done' FROM call_queue WHERE id = $1`, id)
	b.insert("asks")
	b.await(`SELECT count(*) = 0 FROM callq.call_pauses`)
}

// A host that turns most requests away with a bare 503 has a limit; one that answers nothing else is down.
func TestBare503(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	some := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1)%8 != 1 {
			w.WriteHeader(503)
		}
	}).URL
	b := newBench(t, nil).ready()
	b.exec(`UPDATE callq.call_queues SET max_attempts = 10`)
	for range 30 {
		b.insertCall(callqueue.Call{Data: map[string]any{"url": some}})
	}
	b.await(`SELECT count(*) > 0 FROM call_attempts WHERE outcome = 'refused'`)
	b.exec(`WITH p AS (DELETE FROM callq.call_pauses) DELETE FROM call_queue`)
	down := newClosing(t, status(503))
	b.exec(`UPDATE callq.call_queues SET max_attempts = 2`)
	for range 10 {
		b.insertCall(down.call())
	}
	b.await(`SELECT count(*) = 10 AND bool_and(status = 'failed' AND failed_count = 2) FROM call_queue`)
	b.await(`SELECT count(*) = 0 FROM callq.call_pauses`)
}
