package tasks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/tasks"
)

// get sends an attempt's request through its client, and reads nothing of the answer but its status.
func get(ctx context.Context, call *tasks.Call, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := call.Client.Do(r)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the API answered %s", answer.Status)
	}
	return nil
}

// underTwo has the default queue be under "api", which is anchored at the start, and "ended", at the finish.
func (b *bench) underTwo() {
	b.t.Helper()
	b.await(`SELECT complete_since IS NOT NULL FROM callq.call_limits`)
	for _, sql := range []string{
		`UPDATE callq.call_limits SET anchor = 'start', slack = '1 min', send_within = '1 min'`,
		`INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, count_cost, anchor, slack, send_within, queues, applied_at,
			applied_by, complete_since, epoch)
			SELECT 'ended', version, rate, window_size, bucket_width, per_key, count_cost, 'finish', slack, send_within, queues, applied_at,
			applied_by, complete_since, epoch FROM callq.call_limits`,
		`UPDATE callq.call_queues SET limits = '{api,ended}'`,
	} {
		b.exec(sql)
	}
}

// verifyAsSet is verify, where the test has set the limits itself.
func (b *bench) verifyAsSet() {
	b.t.Helper()
	for _, sql := range []string{
		`TRUNCATE callq.call_audit, callq.call_limit_versions`,
		`INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, shape, per_key, overrides, count_cost, anchor, slack, proof, arrive_within,
			send_within, queues, applied_by)
			SELECT name, version, applied_at - interval '1 hour', rate, window_size, shape, per_key, overrides, count_cost, anchor, slack, proof, arrive_within, send_within,
				queues, 'test'
			FROM callq.call_limits`,
	} {
		b.exec(sql)
	}
	b.verify()
}

// untilSQL is until when the last attempt of a call counts for a limit.
const untilSQL = `(SELECT (c->>'until')::timestamptz FROM call_attempts, jsonb_array_elements(charged) c
	WHERE call_id = $1 AND c->>'limit' = '%s' ORDER BY attempt DESC LIMIT 1)`

// What went through the client counts, under a limit that is anchored at the start, until it arrived; under others
// until the handler ended, for it may have sent by other means too.
//
//callq:guarantee 1
func TestClientBoundsTheArrival(t *testing.T) {
	t.Parallel()
	answer, begun, finish := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	api := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			begun <- struct{}{}
			<-r.Context().Done()
			return
		}
		<-answer
	})
	b := newBench(t, map[string]tasks.Handler{
		"answered": func(ctx context.Context, call *tasks.Call) error {
			err := get(ctx, call, api.URL)
			begun <- struct{}{}
			<-finish
			return err
		},
		"left behind": func(_ context.Context, call *tasks.Call) error { // its context outlives the handler
			go func() { _ = get(context.Background(), call, api.URL+"/silent") }()
			<-begun
			return nil
		},
		"by other means": func(ctx context.Context, _ *tasks.Call) error {
			begun <- struct{}{}
			<-finish
			return ctx.Err()
		},
	})
	b.underTwo()
	const long = `SELECT clock_timestamp() > started_at + interval '300 ms' FROM callq.call_open WHERE call_id = $1`
	api1, ended := fmt.Sprintf(untilSQL, "api"), fmt.Sprintf(untilSQL, "ended")

	id := b.insertCall(callqueue.Call{Task: "answered"})
	b.await(long, id)
	answer <- struct{}{}
	<-begun
	b.await(`SELECT clock_timestamp() > started_at + interval '900 ms' FROM callq.call_open WHERE call_id = $1`, id)
	finish <- struct{}{}
	b.ended(id, callqueue.StatusDone)
	b.await(`SELECT requests = 1 AND `+api1+` >= started_at + interval '300 ms' AND `+api1+` < `+ended+`
		AND `+ended+` BETWEEN started_at + interval '900 ms' AND finished_at + interval '40 s' FROM call_attempts WHERE call_id = $1`, id)

	// What was not answered has not arrived for sure, whatever the handler says.
	id = b.insertCall(callqueue.Call{Task: "left behind"})
	b.ended(id, callqueue.StatusDone)
	b.await(`SELECT requests = 1 AND `+api1+` > started_at + interval '1 min' AND `+ended+` > finished_at + interval '20 s'
		FROM call_attempts WHERE call_id = $1`, id)

	id = b.insertCall(callqueue.Call{Task: "by other means"})
	<-begun
	b.await(long, id)
	finish <- struct{}{}
	b.ended(id, callqueue.StatusDone)
	b.await(`SELECT requests IS NULL AND `+api1+` > started_at + interval '300 ms' AND `+ended+` > started_at + interval '300 ms'
		FROM call_attempts WHERE call_id = $1`, id)
	b.drain()
	b.verifyAsSet()
}

// A request that the gate refuses is not sent, and a handler that returns that uses no unit and no attempt. Where
// something was sent the gate knows better than the handler.
//
//callq:guarantee 1
func TestClientNotSent(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	api := serve(t, func(http.ResponseWriter, *http.Request) { served.Add(1) })
	b := newBench(t, map[string]tasks.Handler{
		"get": func(ctx context.Context, call *tasks.Call) error { return get(ctx, call, api.URL) },
		"liar": func(ctx context.Context, call *tasks.Call) error {
			return errors.Join(get(ctx, call, api.URL), tasks.NotSent(errors.New("so it says")))
		},
	})
	b.underTwo()
	set := func(sql string) {
		t.Helper()
		b.exec(`UPDATE callq.call_limits SET ` + sql)
	}
	set(`send_within = '1 us'`)
	id := b.insert("get")
	b.await(`SELECT attempts > 3 AND failed_count = 0 FROM call_queue WHERE id = $1`, id)
	b.await(`SELECT bool_and(outcome = 'not_sent' AND charged = '[]' AND started_at IS NOT NULL AND error LIKE '%not sent: the worker took longer than send_within%')
		FROM call_attempts WHERE call_id = $1`, id)
	if n := served.Load(); n > 0 {
		t.Errorf("%d requests served", n)
	}
	set(`send_within = '1 min'`)
	b.ended(id, callqueue.StatusDone)
	b.await(`SELECT requests = 1 FROM call_attempts WHERE call_id = $1 AND outcome = 'done'`, id)

	// Without an anchor at the start a handler may take its time.
	set(`send_within = '1 us', anchor = NULL WHERE name = 'api'`)
	if outcome, message, _ := b.ended(b.insert("get"), callqueue.StatusDone); outcome != "done" {
		t.Errorf("got %s: %s", outcome, message)
	}

	served.Store(0)
	set(`send_within = '1 min', anchor = 'start' WHERE name = 'api'`)
	outcome, message, charges := b.ended(b.insert("liar"), callqueue.StatusFailed)
	if outcome != "error" || charges != 2 || message != "a request was sent through the call's Client, but the handler says: not sent: so it says" {
		t.Errorf("got %s %q charged %d", outcome, message, charges)
	}
	if n := served.Load(); n != 2 {
		t.Errorf("%d requests served, want one for each of 2 attempts", n)
	}
	b.drain()
	b.verifyAsSet()
}

// A call that is cancelled has its handler's request reset.
func TestClientOfACancelledCall(t *testing.T) {
	t.Parallel()
	arrived, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	api := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	b := newBench(t, map[string]tasks.Handler{
		// It listens to no context: the client does.
		"get": func(_ context.Context, call *tasks.Call) error { return get(context.Background(), call, api.URL) },
	})
	id := b.insertCall(callqueue.Call{Task: "get"})
	select {
	case <-arrived:
	case <-time.After(time.Minute):
		t.Fatal("no request came")
	}
	b.cancel(id)
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("the request went on")
	}
	b.await(`SELECT outcome = 'cancelled' AND requests = 1 AND charged <> '[]' AND error LIKE '%the call was cancelled%' FROM call_attempts WHERE call_id = $1`, id)
}

// A handler that sends through the call's client, so that its limits may have anchor: start.
func ExampleHandler() {
	var handler tasks.Handler = func(ctx context.Context, call *tasks.Call) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example.com/mails", bytes.NewReader(call.Data))
		if err != nil {
			return tasks.Permanent(err)
		}
		answer, err := call.Client.Do(r)
		if err != nil {
			return err // retried; where the request was too late to be sent it says so itself
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the API answered %s", answer.Status)
		}
		return nil
	}
	_ = handler
}

// The producer estimates tokens, and the answer says how many there were.
func ExampleCall_Settle() {
	var handler tasks.Handler = func(ctx context.Context, call *tasks.Call) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://llm.example.com/v1/chat", bytes.NewReader(call.Data))
		if err != nil {
			return tasks.Permanent(err)
		}
		answer, err := call.Client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var said struct {
			Usage struct {
				Total int64 `json:"total_tokens"`
			} `json:"usage"`
		}
		if err := json.NewDecoder(answer.Body).Decode(&said); err != nil {
			return err
		}
		return call.Settle(said.Usage.Total)
	}
	_ = handler
}
