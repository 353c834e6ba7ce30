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

// A process's new rules take the place of the old ones, which hold no more: a lower limit at once, with
// what it recalls, a higher one too. What contradicts itself changes nothing.
func TestReloadReplacesOwnRules(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.calls("default", 50)
	d := s.joined(hourly(10))
	s.tick(d)
	s.start(time.Hour, 1, 2)
	s.replace(d, hourly(6))
	s.rate(6, "lowered")
	s.want(`SELECT count(*) = 2 AND count(started_at) = 2 FROM call_open`)
	s.tick(d)
	s.want(`SELECT count(*) = 6 FROM call_open`)
	s.replace(d, hourly(12))
	s.rate(12, "raised")
	s.tick(d)
	s.want(`SELECT count(*) = 12 FROM call_open`)
	s.want(`SELECT count(*) = 1 FROM call_dispatchers`)
	if err := d.Reload(dispatcher.Settings{Policy: hourly(0)}); err == nil {
		t.Error("a rate of nothing was taken")
	}
	s.rate(12, "after a bad file")
}

// What left the file is taken away, and its calls wait; what is new is there, and how queues retry is as the newest has it.
func TestReloadTakesAway(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	a, b := sliding("a", 10, time.Hour), sliding("b", 10, time.Hour)
	d := s.joined(policy.Policy{Limits: []policy.Limit{a, b}, Queues: []policy.Queue{queue("old", "a"), queue("kept", "a", "b")}})
	s.calls("old", 3)
	s.tick(d)
	s.want(`SELECT count(*) = 3 FROM call_open`)
	newer := policy.Policy{Limits: []policy.Limit{b}, Queues: []policy.Queue{queue("kept", "b"), queue("new")}}
	newer.Queues[0].MaxAttempts = 7
	s.replace(d, newer)
	s.want(`SELECT string_agg(concat(name, limits, max_attempts), ' ' ORDER BY name) = 'kept{b}7 new{}3' FROM call_queues`)
	s.want(`SELECT string_agg(concat(name, queues), ' ' ORDER BY name) = 'a{} b{kept}' FROM call_limits`)
	s.calls("new", 2)
	s.tick(d)
	s.want(`SELECT string_agg(concat(queue, status), ' ' ORDER BY id) = 'oldnew oldnew oldnew newdispatched newdispatched' FROM call_queue`)
}

// A running dispatcher follows what it is given: the limits, and also when retention runs and what it keeps.
func TestReloadRunning(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.exec(`INSERT INTO call_queue (status, finished_at) VALUES ('done', now() - interval '1 hour')`)
	s.calls("default", 50)
	d := s.another(hourly(10))
	s.run(d.Run)
	s.eventually(`SELECT count(*) = 10 FROM call_open`)
	s.reload(d, dispatcher.Settings{Policy: hourly(15)})
	s.eventually(`SELECT count(*) = 15 FROM call_open`)
	s.want(`SELECT count(*) = 1 FROM call_queue WHERE status = 'done'`)
	s.reload(d, dispatcher.Settings{
		Policy: hourly(5), Schedule: dispatcher.Schedule{Retention: "@every 1s"}, Retention: maintenance.Retention{Done: time.Minute},
	})
	s.eventually(`SELECT count(*) = 5 FROM call_open`)
	s.eventually(`SELECT count(*) = 0 FROM call_queue WHERE status = 'done'`)
	// It is the former schedule again, and still ticks.
	s.reload(d, dispatcher.Settings{Policy: hourly(20)})
	s.eventually(`SELECT count(*) = 20 FROM call_open`)
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
			s.eventually(`SELECT count(*) = 1 FROM call_limits WHERE rate = 77`)
			if name != "running" {
				s.want(`SELECT count(*) = 1 FROM call_limit_versions`) // the first were never in force
			}
			s.others(0, d)
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

func (l *log) has(words string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), words)
}
