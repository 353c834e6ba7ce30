package dispatcher_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
)

func (s *system) replace(d *dispatcher.Dispatcher, r policy.Policy) {
	s.t.Helper()
	if err := d.Replace(s.t.Context(), dispatcher.Settings{Policy: r}); err != nil {
		s.t.Fatal(err)
	}
}

// reload gives a running dispatcher settings, which must be good.
func (s *system) reload(d *dispatcher.Dispatcher, settings dispatcher.Settings) {
	s.t.Helper()
	if err := d.Reload(settings); err != nil {
		s.t.Error(err)
	}
}

// A running dispatcher follows what it is given: the limits, and also when retention runs and what it keeps. What contradicts
// itself changes nothing.
func TestReloadRunning(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.exec(`INSERT INTO call_queue (status, finished_at) VALUES ('done', now() - interval '1 hour')`)
	s.calls("default", 50)
	d := s.another(hourly(10))
	s.run(d.Run)
	s.eventually(`SELECT count(*) = 10 FROM callq.call_open`)
	s.reload(d, dispatcher.Settings{Policy: hourly(15)})
	s.eventually(`SELECT count(*) = 15 FROM callq.call_open`)
	s.want(`SELECT count(*) = 1 FROM call_queue WHERE status = 'done'`)
	s.reload(d, dispatcher.Settings{
		Policy: hourly(5), Schedule: dispatcher.Schedule{Retention: "@every 1s"}, Retention: maintenance.Retention{Done: time.Minute},
	})
	s.eventually(`SELECT count(*) = 5 FROM callq.call_open`)
	s.eventually(`SELECT count(*) = 0 FROM call_queue WHERE status = 'done'`)
	if err := d.Reload(dispatcher.Settings{Policy: hourly(0)}); err == nil {
		t.Error("a rate of nothing was taken")
	}
	s.rate(5, "after a bad file")
	// It is the former schedule again, and still ticks.
	s.reload(d, dispatcher.Settings{Policy: hourly(20)})
	s.eventually(`SELECT count(*) = 20 FROM callq.call_open`)
}

// A reload while calls are claimed races with none of them: the race detector says so.
func TestReloadWhileClaiming(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(10_000)
	d := s.another(hourly(10_000))
	s.run(d.Run)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 { // each wakes it, so that it claims while others reload
				s.calls("default", 10)
			}
		})
	}
	for i := range int64(80) {
		s.reload(d, dispatcher.Settings{Policy: hourly(10_001 + i)})
		s.eventually(`SELECT count(*) = 1 FROM callq.call_limits WHERE rate = $1`, 10_001+i)
	}
	all.Wait()
	s.eventually(`SELECT count(*) = 1000 FROM callq.call_open`)
}

// Of many at once the last holds, however they race; also where they come before the start.
func TestReloadNewestHolds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"running", "before the start"} {
		parallel(t, name, func(t *testing.T, s *system) {
			d := s.another(hourly(1000))
			if name == "running" {
				s.run(d.Run)
			}
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() { s.reload(d, dispatcher.Settings{Policy: hourly(int64(1 + i))}) })
			}
			all.Wait()
			s.reload(d, dispatcher.Settings{Policy: hourly(77)})
			if name != "running" {
				s.run(d.Run)
			}
			s.eventually(`SELECT count(*) = 1 FROM callq.call_limits WHERE rate = 77`)
			if name != "running" {
				s.want(`SELECT count(*) = 1 FROM callq.call_limit_versions`) // the first were never in force
			}
			// A heartbeat between the commit and its answer still names the file before.
			s.eventually(`SELECT bool_and(policy = (SELECT hash FROM callq.call_policies ORDER BY number DESC LIMIT 1)) FROM callq.call_dispatchers`)
		})
	}
}

// log keeps what is logged.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) has(words string) bool { return strings.Contains(l.all(), words) }

func (l *log) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
