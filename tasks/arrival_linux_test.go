package tasks_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
)

// A request without an answer occupies its unit until one that was written after it, to the same host, is answered. That it
// was acknowledged counts for nothing.
//
//callq:guarantee 1
func TestLaterAnswerFreesUnits(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	api := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-answer
		}
	})
	b := newBenchWith(t, dispatcher.Config{}, limit.Rate{Units: 2, Window: 100 * time.Millisecond}, nil)
	t.Cleanup(func() { close(answer) }) // so that the worker can end
	slow := b.insertCall(callqueue.Call{Data: map[string]string{"url": api.URL + "/slow"}})
	b.await(`SELECT clock_timestamp() > started_at + interval '1 s' AND overtaken_at IS NULL FROM callq.call_open WHERE call_id = $1`, slow)
	b.ended(b.insertCall(callqueue.Call{Data: map[string]string{"url": api.URL}}), callqueue.StatusDone)
	b.await(`SELECT o.overtaken_at BETWEEN a.started_at AND a.finished_at + interval '1 s'
		FROM callq.call_open o CROSS JOIN call_attempts a WHERE o.call_id = $1 AND a.outcome = 'done'`, slow)
}

// An API that stands still holds the units of what was written to it, whether callq still waits for the answers or has given up.
// After arrive_within, and again each arrive_within, one request counts as arrived, so that one more asks whether the API is
// back. Once that is answered, so is the question for all others.
//
//callq:guarantee 1
func TestStalledAPIHoldsUnits(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int64
	back := make(chan struct{})
	api := serve(t, func(http.ResponseWriter, *http.Request) {
		arrived.Add(1)
		<-back
	})
	b := newBenchWith(t, dispatcher.Config{}, limit.Rate{Units: 3, Window: 100 * time.Millisecond}, nil)
	b.await(`SELECT EXISTS (SELECT FROM callq.call_limits)`)
	b.exec(`UPDATE callq.call_limits SET arrive_within = '2 s'`)
	b.exec(`INSERT INTO call_queue (queue, max_attempts, call_data)
		SELECT 'short', 100, jsonb_build_object('url', $1::text) FROM generate_series(1, 8)`, api.URL)
	const heldSQL = `(SELECT count(*) FROM call_attempts WHERE arrived_by > '2199-01-01' AND host IS NOT NULL AND proof IS NULL)`
	b.await(`SELECT ` + heldSQL + ` = 3 AND (SELECT sum(used) FROM callq.call_usage) = 3`)
	b.await(`SELECT count(*) >= 2 FROM call_attempts WHERE proof = 'assumed'`)
	b.await(`SELECT bool_and(gap IS NULL OR gap > interval '2 s') FROM (
		SELECT arrived_by - lag(arrived_by) OVER (ORDER BY arrived_by) AS gap FROM call_attempts WHERE proof = 'assumed') a`)
	var probes int64
	if err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM call_attempts WHERE proof = 'assumed'`).Scan(&probes); err != nil {
		t.Fatal(err)
	}
	if n := arrived.Load(); n > 3+probes {
		t.Errorf("%d requests arrived at an API that stands still, of 3 that the limit allows and %d probes", n, probes)
	}
	close(back)
	b.await(`SELECT count(*) = 8 FROM call_queue WHERE status = 'done'`)
	b.await(`SELECT ` + heldSQL + ` = 0 AND count(*) FILTER (WHERE proof = 'later') > 0 FROM call_attempts`)
	b.await(`SELECT coalesce(sum(used) FILTER (WHERE bucket > '2199-01-01'), 0) = 0 FROM callq.call_usage`)
	b.drain()
	b.verifyAsSet()
}
