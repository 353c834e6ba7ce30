package dispatcher_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
)

func (s *system) replace(d *dispatcher.Dispatcher, r dispatcher.Rules) {
	s.t.Helper()
	if err := d.Replace(s.t.Context(), dispatcher.Settings{Rules: r}); err != nil {
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

// A process's new rules take the place of its old ones, which hold no more: a lower limit at once, with
// what it recalls, a higher one too where nobody else holds it down.
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
	s.want(`SELECT count(*) = 1 FROM call_publishers`)
	before := s.inForce()
	s.replace(d, hourly(12))
	if after := s.inForce(); after != before {
		t.Errorf("the same again changed\n%s\nto\n%s", before, after)
	}
}

// Beside another process the stricter holds, whichever of them reloads; and of what has no stricter, how
// queues retry, the one that reloaded last decides.
func TestReloadBesideAnother(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	attempts := func(units int64, most int) dispatcher.Rules {
		r := hourly(units)
		r.Queues[0].MaxAttempts = most
		return r
	}
	first, second := s.joined(attempts(10, 3)), s.joined(attempts(6, 4))
	s.rate(6, "at the start")
	s.replace(second, attempts(20, 4))
	s.rate(10, "the stricter was raised")
	s.replace(first, attempts(8, 5))
	s.rate(8, "the other was lowered")
	s.want(`SELECT max_attempts = 5 FROM call_queues`)
	s.replace(second, attempts(20, 4)) // nothing new: it does not count as come now
	s.want(`SELECT max_attempts = 5 FROM call_queues`)
	first.Leave(t.Context())
	s.tick(second)
	s.rate(20, "alone")
	s.want(`SELECT max_attempts = 4 FROM call_queues`)
}

// What left the file is taken away, and its calls wait; what is new is there.
func TestReloadTakesAway(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	a, b := sliding("a", 10, time.Hour), sliding("b", 10, time.Hour)
	d := s.joined(dispatcher.Rules{Limits: []dispatcher.LimitRule{a, b}, Queues: []dispatcher.QueueRule{queue("old", "a"), queue("kept", "a", "b")}})
	s.calls("old", 3)
	s.tick(d)
	s.want(`SELECT count(*) = 3 FROM call_open`)
	s.replace(d, dispatcher.Rules{Limits: []dispatcher.LimitRule{b}, Queues: []dispatcher.QueueRule{queue("kept", "b"), queue("new")}})
	s.want(`SELECT string_agg(concat(name, limits), ' ' ORDER BY name) = 'kept{b} new{}' FROM call_queues`)
	s.want(`SELECT string_agg(concat(name, queues), ' ' ORDER BY name) = 'a{} b{kept}' FROM call_limits`)
	s.calls("new", 2)
	s.tick(d)
	s.want(`SELECT string_agg(concat(queue, status), ' ' ORDER BY id) = 'oldnew oldnew oldnew newdispatched newdispatched' FROM call_queue`)
}

// A rate that becomes a concurrency beside another process's rate is refused: the former rules stay, of
// which this process goes on to be a publisher.
func TestReloadRefused(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.joined(hourly(10))
	d := s.joined(hourly(6))
	before := s.inForce()
	err := d.Replace(t.Context(), dispatcher.Settings{Rules: rules(dispatcher.LimitRule{Name: "api", Rate: limit.Rate{Units: 3}})})
	if _, conflict := errors.AsType[*dispatcher.ConflictError](err); !conflict {
		t.Errorf("error %v, want a conflict", err)
	}
	if err := d.Reload(dispatcher.Settings{Rules: rules(sliding("api", 0, time.Hour))}); err == nil {
		t.Error("a rate of nothing was taken")
	}
	if after := s.inForce(); after != before || d.Ready() != nil {
		t.Errorf("what was refused changed\n%s\nto\n%s\nready: %v", before, after, d.Ready())
	}
	s.silent(d, "1 hour") // and had it been taken for dead, it would publish what it was
	s.exec(`DELETE FROM call_publishers WHERE id = $1`, d.PublisherID())
	if err := d.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.rate(6, "after it was taken for dead")
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
	s.reload(d, dispatcher.Settings{Rules: hourly(15)})
	s.eventually(`SELECT count(*) = 15 FROM call_open`)
	s.want(`SELECT count(*) = 1 FROM call_queue WHERE status = 'done'`)
	s.reload(d, dispatcher.Settings{
		Rules: hourly(5), Schedule: dispatcher.Schedule{Retention: "@every 1s"}, Retention: dispatcher.Retention{Done: time.Minute},
	})
	s.eventually(`SELECT count(*) = 5 FROM call_open`)
	s.eventually(`SELECT count(*) = 0 FROM call_queue WHERE status = 'done'`)
	// It is the former schedule again, and still ticks.
	s.reload(d, dispatcher.Settings{Rules: hourly(20)})
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
				all.Go(func() { s.reload(d, dispatcher.Settings{Rules: hourly(int64(1 + i))}) })
			}
			all.Wait()
			s.reload(d, dispatcher.Settings{Rules: hourly(77)})
			if name != "running" {
				s.run(d.Run)
			}
			s.eventually(`SELECT count(*) = 1 FROM call_limits WHERE rate = 77`)
			if name != "running" {
				s.want(`SELECT count(*) = 1 FROM call_limit_changes`) // the first were never in force
			}
			s.want(`SELECT rules -> 'Limits' -> 0 -> 'Rate' ->> 'Units' = '77' FROM call_publishers`)
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

// A refusal is said, and the dispatcher runs on with what it had; the next that can hold is taken.
func TestReloadRefusedRunning(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var said log
	s.log = slog.New(slog.NewTextHandler(&said, nil))
	s.joined(hourly(10))
	d := s.another(hourly(6))
	s.run(d.Run)
	s.eventually(`SELECT count(*) = 1 FROM call_limits WHERE rate = 6`)
	s.reload(d, dispatcher.Settings{Rules: rules(dispatcher.LimitRule{Name: "api", Rate: limit.Rate{Units: 3}})})
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !said.has("new settings refused, the former ones stay in force") {
		select {
		case <-deadline.Done():
			t.Fatal("the refusal is not said")
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.rate(6, "after the refusal")
	s.reload(d, dispatcher.Settings{Rules: hourly(4)})
	s.eventually(`SELECT count(*) = 1 FROM call_limits WHERE rate = 4`)
}
