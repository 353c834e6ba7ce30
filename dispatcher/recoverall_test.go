package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/recovery"
	"golang.org/x/sync/errgroup"
)

// A whole sweep mends everything at once, however much there is, and finds nothing afterwards. Looking
// changes nothing, and says the same.
func TestSweepAll(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 100, time.Hour))
	s.calls("default", 60)
	s.once(r) // no worker lives: all are handed over
	s.alive(100)
	s.start(30*time.Minute, 1, 2, 3)
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 hour', deadline = deadline - interval '1 hour' WHERE call_id <= 2`)
	s.exec(`UPDATE callq.call_open SET start_by = clock_timestamp() - interval '1 s' WHERE call_id BETWEEN 11 AND 15`)
	s.exec(`UPDATE callq.call_open SET epoch = 'older' WHERE call_id BETWEEN 21 AND 24`)
	s.exec(`UPDATE callq.call_open SET handed_at = handed_at - interval '1 min'`)
	if err := s.redis.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO call_queue (queue, expires_at) SELECT 'default', now() - interval '1 hour' FROM generate_series(1, 1200)`)
	s.exec(`INSERT INTO call_queue (queue) SELECT 'default' FROM generate_series(1, 7)`)
	s.exec(`DELETE FROM callq.call_inbox`)
	s.exec(`UPDATE callq.call_limits SET complete_since = NULL`)
	want := map[string]int64{
		"former_epoch": 4, "lost": 2, "unstarted": 5, "undelivered": 60 - 3 - 4,
		"expired": 1200, "uncounted_limits": 1, "uncounted_caps": 0, "broken_flows": 0, "orphaned_calls": 1207,
	}
	before := s.books()
	s.sweptIs("would be", want)(s.dispatcher(policy.Policy{}).Recover(t.Context(), true))
	if after := s.books(); after != before {
		t.Errorf("looking changed something: %s, then %s", before, after)
	}
	// What is swept first is not found by those behind; what it puts back is news already.
	want["undelivered"] -= 5
	want["orphaned_calls"] = 7
	s.sweptIs("was", want)(s.dispatcher(policy.Policy{}).Recover(t.Context(), false))
	s.want(`SELECT count(*) = 1200 FROM call_queue WHERE status = 'failed'`)
	s.want(`SELECT count(*) = 0 FROM call_queue q WHERE status IN ('new', 'error') AND NOT EXISTS (SELECT FROM callq.call_backlog i WHERE i.id = q.id)`)
	for what := range want {
		want[what] = 0
	}
	s.sweptIs("was again", want)(s.dispatcher(policy.Policy{}).Recover(t.Context(), false))
	s.want(`SELECT count(*) = 0 FROM callq.call_dispatchers`)
}

// Any number may sweep everything at once, beside claims that step over what was cancelled in line.
func TestSweepAllBesideClaims(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 100, time.Hour))
	s.once(r)
	s.exec(`INSERT INTO call_queue (key) SELECT 'k' || i % 3 FROM generate_series(1, 20000) i`)
	s.exec(`UPDATE call_queue SET status = 'cancelled' WHERE hashint8(id) % 20 <> 0`)
	s.alive(1000)
	var all errgroup.Group
	for range 4 {
		d := s.another(r)
		all.Go(func() error { return d.Tick(context.WithoutCancel(t.Context())) })
		sweeper := s.another(policy.Policy{})
		all.Go(func() error {
			_, err := sweeper.Recover(context.WithoutCancel(t.Context()), false)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	s.once(r)
	if found, err := backlog.FindOrphans(t.Context(), s.pool); err != nil || found != (backlog.Orphans{}) {
		t.Errorf("found %+v, %v", found, err)
	}
	s.want(`SELECT count(*) = 100 FROM callq.call_open`)
}

// books is a fingerprint of what a sweep may change.
func (s *system) books() string {
	s.t.Helper()
	return one[string](s, `SELECT md5(concat((SELECT string_agg(q::text, ',' ORDER BY id) FROM call_queue q),
		(SELECT string_agg(o::text, ',' ORDER BY call_id) FROM callq.call_open o), (SELECT count(*) FROM callq.call_inbox), (SELECT count(*) FROM callq.call_usage),
		(SELECT string_agg(l::text, ',') FROM callq.call_limits l), (SELECT string_agg(m::text, ',' ORDER BY name) FROM callq.call_meta m)))`)
}

func (s *system) sweptIs(verb string, want map[string]int64) func([]recovery.Recovered, error) {
	return func(swept []recovery.Recovered, err error) {
		s.t.Helper()
		if err != nil || len(swept) != len(want) {
			s.t.Errorf("%v, %v; want %v", swept, err, want)
		}
		for _, w := range swept {
			if w.Count != want[w.Kind] {
				s.t.Errorf("%d %s %s swept, want %d", w.Count, w.Kind, verb, want[w.Kind])
			}
		}
	}
}
