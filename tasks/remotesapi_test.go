package tasks_test

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
)

// limitedAPI says how much remains of its limit, a sliding window.
type limitedAPI struct {
	mu      sync.Mutex
	most    int
	window  time.Duration
	arrived []time.Time   // within the window
	others  int           // units that others use
	next    chan struct{} // closed when the next request comes
}

func (a *limitedAPI) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for len(a.arrived) > 0 && now.Sub(a.arrived[0]) >= a.window {
		a.arrived = a.arrived[1:]
	}
	a.arrived = append(a.arrived, now)
	if a.next != nil {
		close(a.next)
	}
	a.next = make(chan struct{})
	w.Header().Set("X-Ratelimit-Limit", strconv.Itoa(a.most))
	w.Header().Set("X-Ratelimit-Remaining", strconv.Itoa(max(0, a.most-len(a.arrived)-a.others)))
	w.Header().Set("X-Ratelimit-Reset", strconv.Itoa(int(a.window/time.Second)))
}

// Alone before an API that counts as callq does, nothing is lowered, however long its answers take. Once others use half of its limit,
// that is.
func TestRemotesOfAnAPI(t *testing.T) {
	t.Parallel()
	const units, window = 10, 2 * time.Second
	a := &limitedAPI{most: units, window: window}
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		a.ServeHTTP(w, r)
		if r.URL.Path == "/slow" {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			a.mu.Lock()
			next := a.next
			a.mu.Unlock()
			select {
			case <-next: // others are counted meanwhile
			case <-time.After(window / 2):
			}
		}
	})
	b := newBenchWith(t, dispatcher.Config{}, limit.Rate{Units: units, Window: window}, nil)
	b.exec(`
		CREATE TABLE told AS SELECT now() AS at, 0::bigint AS lowered, 0::bigint AS remaining WHERE false;
		GRANT INSERT ON told TO PUBLIC;
		CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO told VALUES (now(), NEW.lowered, NEW.remaining); RETURN NEW; END';
		CREATE TRIGGER tell BEFORE INSERT OR UPDATE ON callq.call_remotes FOR EACH ROW EXECUTE FUNCTION tell()`)
	inserted := 0
	insert := func(n int) {
		for range n {
			path := "/fast"
			if inserted++; inserted%4 == 0 {
				path = "/slow"
			}
			b.insertCall(callqueue.Call{Data: []byte(fmt.Sprintf(`{"url": %q}`, api.URL+path))})
		}
	}
	tick := time.NewTicker(window / units) // apart, so that units come free one after another, too
	defer tick.Stop()
	for range 2 * units {
		<-tick.C
		insert(1)
	}
	insert(2 * units)
	b.await(`SELECT count(*) > 3 FROM told`)
	b.await(`SELECT NOT EXISTS (SELECT FROM call_queue WHERE status <> 'done')`)
	var lowered, low int
	if err := b.pool.QueryRow(t.Context(), `SELECT count(lowered), count(*) FILTER (WHERE remaining < 3) FROM told`).Scan(&lowered, &low); err != nil || lowered > 0 || low == 0 {
		t.Errorf("lowered %d times; %d times little remained; %v", lowered, low, err)
	}
	a.mu.Lock()
	a.others = units / 2
	a.mu.Unlock()
	b.await(`SELECT max(arrived_by) < now() - interval '2500 ms' FROM call_attempts`) // nothing of ours is in use
	insert(2)
	b.await(`SELECT most = $1 AND lowered BETWEEN 5 AND 9 AND reset_at > now() FROM callq.call_remotes WHERE limit_name = 'api' AND key = ''`, units)
}
