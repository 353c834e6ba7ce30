package tasks_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
)

// An API that answers slowly gets as many requests as its limit allows: their units come free a window after they
// arrived, not after their answers.
//
//callq:guarantee 1
func TestSlowAnswersFreeUnits(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	api := serve(t, func(http.ResponseWriter, *http.Request) { <-answer })
	b := newBenchWith(t, dispatcher.Config{}, limit.Rate{Units: 1, Window: 100 * time.Millisecond}, nil)
	t.Cleanup(func() { close(answer) }) // so that the worker can end
	b.exec(`INSERT INTO call_queue (call_data)
		SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, 2)`, api.URL)
	// None is answered. The second is sent since the first is known to have arrived, not once TCP would have given up.
	b.await(`SELECT count(*) = 2 AND bool_and(acked_at BETWEEN started_at AND clock_timestamp())
		AND max(started_at) - min(started_at) < interval '5 s' FROM call_open`)
}
