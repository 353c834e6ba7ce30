package tasks_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
)

// Where somebody vouches, with a slack, that an API reads at once, slow answers hold no units: these come free a window after
// the requests were acknowledged, not after their answers.
//
//callq:guarantee 1
func TestSlackFreesUnits(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	api := serve(t, func(http.ResponseWriter, *http.Request) { <-answer })
	b := newBenchWith(t, dispatcher.Config{}, limit.Rate{Units: 1, Window: 100 * time.Millisecond}, nil)
	b.await(`SELECT EXISTS (SELECT FROM callq.call_limits)`)
	b.exec(`UPDATE callq.call_limits SET proof = 'slack'`)
	quick := serve(t, func(http.ResponseWriter, *http.Request) {})
	b.ended(b.insertCall(callqueue.Call{Data: map[string]string{"url": quick.URL}}), callqueue.StatusDone) // so that the worker knows of it
	t.Cleanup(func() { close(answer) })                                                                    // so that the worker can end
	b.exec(`INSERT INTO call_queue (call_data)
		SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, 2)`, api.URL)
	// None is answered. The second is sent since the first is known to have arrived, not once TCP would have given up.
	b.await(`SELECT count(*) = 2 AND bool_and(acked_at BETWEEN started_at AND clock_timestamp())
		AND max(started_at) - min(started_at) < interval '5 s' FROM callq.call_open`)
}
