package tasks_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
)

// narrow has its calls go in runs.
func narrow(units int64) limit.Rate {
	return limit.Rate{Units: units, Window: 30 * time.Millisecond}
}

// visits are when calls began and ended, in order.
type visits struct {
	mu   sync.Mutex
	list []visit
}

type visit struct{ began, ended time.Time }

func (v *visits) enter() (leave func()) {
	began := time.Now()
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.list = append(v.list, visit{began, time.Now()})
	}
}

func (v *visits) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.list)
}

// over is the most that began within a window of what ended before, and how long a call took at least to begin after another.
func (v *visits) over(window time.Duration) (most int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, first := range v.list {
		n := 0
		for _, other := range v.list {
			if in := other.began.Sub(first.began); in >= 0 && in < window {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// Calls of a narrow limit go in runs, whether the task is http or one's own: in no window begin more than the limit allows.
//
//callq:guarantee 1
func TestRun(t *testing.T) {
	t.Parallel()
	for _, task := range []string{"http", "own"} {
		for _, units := range []int64{1, 3} {
			t.Run(task, func(t *testing.T) {
				t.Parallel()
				var seen visits
				api := serve(t, func(http.ResponseWriter, *http.Request) { seen.enter()() })
				b := newBenchWith(t, dispatcher.Config{}, narrow(units), map[string]tasks.Handler{
					"own": func(context.Context, *tasks.Call) error { defer seen.enter()(); return nil },
				})
				b.await(`SELECT EXISTS (SELECT FROM callq.call_workers)`)
				b.exec(`INSERT INTO call_queue (task, call_data) SELECT $1, jsonb_build_object('url', $2::text) FROM generate_series(1, 60)`, task, api.URL)
				b.await(`SELECT count(*) = 60 FROM call_queue WHERE status = 'done'`)
				if most := seen.over(narrow(units).Window); most > int(units) || seen.count() != 60 {
					t.Errorf("%d calls, at most %d in a window, want 60 and %d", seen.count(), most, units)
				}
				b.await(`SELECT count(*) > 40 AND count(DISTINCT run) < 20 FROM call_attempts WHERE run IS NOT NULL`)
				b.verify()
			})
		}
	}
}

// What a run has not sent when the API refuses a call of it goes back, uncharged.
func TestRunIsRefused(t *testing.T) {
	t.Parallel()
	api := newClosing(t, status(429, "Retry-After: 60"))
	b := newBenchWith(t, dispatcher.Config{}, narrow(1), nil)
	b.await(`SELECT EXISTS (SELECT FROM callq.call_workers)`)
	b.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, 30)`, api.url)
	b.await(`SELECT count(*) > 0 AND NOT EXISTS (SELECT FROM callq.call_open) FROM callq.call_pauses WHERE spell IS NOT NULL`)
	if n := api.requests.Load(); n != 1 {
		t.Errorf("%d requests, want the one that was refused", n)
	}
	b.await(`SELECT count(*) > 20 AND bool_and(charged = '[]' AND outcome = 'not_sent') FROM call_attempts WHERE outcome <> 'refused'`)
	b.await(`SELECT count(*) = 30 FROM call_queue WHERE status = 'new'`)
	b.verify()
}

// A worker that drains hands back what its run has not sent.
func TestRunOfADrainingWorker(t *testing.T) {
	t.Parallel()
	var seen visits
	api := serve(t, func(http.ResponseWriter, *http.Request) { seen.enter()() })
	b := newBenchWith(t, dispatcher.Config{}, narrow(1), nil)
	b.await(`SELECT EXISTS (SELECT FROM callq.call_workers)`)
	b.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, 60)`, api.URL)
	b.await(`SELECT count(*) > 2 FROM call_queue WHERE status = 'done'`)
	b.drain()
	b.await(`SELECT NOT EXISTS (SELECT FROM callq.call_open) OR NOT EXISTS (SELECT FROM callq.call_open WHERE worker IS NOT NULL)`)
	b.await(`SELECT count(*) = $1 FROM call_queue WHERE status = 'done'`, seen.count())
	b.await(`SELECT bool_and(charged = '[]') FROM call_attempts WHERE outcome = 'not_sent'`)
	b.verify()
}

// A call of a run that was cancelled, or whose limit was paused, does not start; the others go on.
func TestRunSkipsWhatIsCancelled(t *testing.T) {
	t.Parallel()
	api := serve(t, func(http.ResponseWriter, *http.Request) {})
	b := newBenchWith(t, dispatcher.Config{}, narrow(1), nil)
	b.await(`SELECT EXISTS (SELECT FROM callq.call_workers)`)
	var calls []callqueue.Call
	for range 60 {
		calls = append(calls, callqueue.Call{Data: map[string]any{"url": api.URL}})
	}
	ids, err := b.client.InsertMany(t.Context(), calls)
	if err != nil {
		t.Fatal(err)
	}
	b.await(`SELECT count(*) > 2 FROM call_queue WHERE status = 'done'`)
	if _, err := b.client.Cancel(t.Context(), ids[len(ids)-1]); err != nil {
		t.Fatal(err)
	}
	b.await(`SELECT count(*) = 59 FROM call_queue WHERE status = 'done'`)
	b.verify()
}

// A call of a run that cannot be made at all fails as any other does, and the ledger holds: its start was asked for ahead, but it was
// never sent.
func TestRunOfCallsThatCannotBeMade(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, dispatcher.Config{}, narrow(1), nil)
	b.await(`SELECT EXISTS (SELECT FROM callq.call_workers)`)
	b.exec(`INSERT INTO call_queue (call_data) SELECT '{"url": "no url"}' FROM generate_series(1, 30)`)
	b.await(`SELECT count(*) = 30 FROM call_queue WHERE status = 'failed'`)
	b.await(`SELECT count(*) > 20 AND bool_and(outcome = 'permanent' AND started_at IS NULL AND charged = '[]') FROM call_attempts WHERE run IS NOT NULL`)
	b.verify()
}
