package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// set is an operator who sets limit api.
func (s *system) set(units int64, window time.Duration) {
	s.t.Helper()
	if _, err := policy.Override(context.Background(), s.pool, "api", limit.Rate{Units: units, Window: window}, ledger.By("tester")); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) pause(p ledger.Paused) {
	s.t.Helper()
	if _, err := ledger.Pause(s.t.Context(), s.pool, p); err != nil {
		s.t.Fatal(err)
	}
}

// A limit that is raised keeps its buckets, by which claims and verify find what was charged. With another window it gets others.
func TestSetLimitKeepsItsBuckets(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.publish(rules(sliding("api", 10, time.Hour)))
	width := func(want time.Duration) { s.want(`SELECT bucket_width = $1 FROM callq.call_limits`, want) }
	width(time.Hour / 1000)
	s.set(1000, time.Hour)
	width(time.Hour / 1000)
	s.set(10, time.Minute)
	width(time.Minute / 1000)
	s.set(1000, time.Second)
	width(time.Second / 200)
}

// What an operator sets holds until it is reset, whatever is published meanwhile.
//
//callq:guarantee 7
func TestSetLimit(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 10, time.Hour))
	s.calls("default", 50)
	s.once(r)
	s.start(time.Hour, 1, 2, 3, 4)
	s.set(6, time.Hour)
	s.want(`SELECT count(*) = 4 FROM callq.call_open`) // what had not started is recalled
	s.want(`SELECT bool_and(error = 'not sent: recalled, for its rules were changed') FROM call_attempts`)
	s.once(r)
	s.want(`SELECT count(*) = 6 FROM callq.call_open`)
	s.want(`SELECT rate = 6 AND config @> '{"units": 10, "window": 3600000000000}' FROM callq.call_limits`)

	r.Limits[0].Rate.Units = 8
	s.joined(r) // whoever applies what
	s.once(r)
	s.want(`SELECT rate = 6 AND config @> '{"units": 8}' FROM callq.call_limits`)
	s.want(`SELECT count(*) = 6 FROM callq.call_open`)
	if _, err := policy.Reset(t.Context(), s.pool, "api", ledger.By("tester")); err != nil {
		t.Fatal(err)
	}
	s.once(r)
	s.want(`SELECT rate = 8 AND config IS NULL FROM callq.call_limits`)
	s.want(`SELECT count(*) = 8 FROM callq.call_open`)
	s.want(`SELECT array_agg(rate ORDER BY version) = '{10,6,6,8}' FROM callq.call_limit_versions`)
	s.want(`SELECT count(*) = 4 AND count(*) FILTER (WHERE by = 'tester') = 2 FROM callq.call_audit WHERE what = 'limit' AND name = 'api'`)
	s.verify()

	for name, rate := range map[string]limit.Rate{"nothing": {Units: 1, Window: time.Second}, "": {}} {
		if _, err := policy.Override(t.Context(), s.pool, name, rate, ledger.By("tester")); !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("set %q: %v, want ErrUnknown", name, err)
		}
	}
	if _, err := policy.Override(t.Context(), s.pool, "api", limit.Rate{Units: 5}, ledger.By("tester")); err == nil {
		t.Error("a rate was set to a concurrency")
	}
	s.set(8, 2*time.Hour) // longer: counted anew
	s.want(`SELECT complete_since IS NULL AND window_size = '2 h' AND config @> '{"window": 3600000000000}' FROM callq.call_limits`)
	s.once(r)
	s.want(`SELECT complete_since IS NOT NULL FROM callq.call_limits`)
	s.want(`SELECT count(*) = 8 FROM callq.call_open`)
	s.verify()
}

//callq:guarantee 7 12
func TestPause(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		p    ledger.Paused
		open string // while it is paused
	}{
		{"a queue", ledger.Paused{What: "queue", Name: "default"}, ""},
		{"a limit", ledger.Paused{What: "limit", Name: "api"}, ""},
		{"a key of a queue", ledger.Paused{What: "queue", Name: "default", Key: "a"}, "b:6"},
		{"a key of a limit", ledger.Paused{What: "limit", Name: "api", Key: "a"}, "b:6"},
		{"for a while", ledger.Paused{What: "limit", Name: "api", Key: "b", For: new(time.Hour)}, "a:6"},
	}
	for _, c := range cases {
		parallel(t, c.name, func(t *testing.T, s *system) {
			s.alive(100)
			r := rules(sliding("api", 6, time.Hour))
			s.keyed("a", 50)
			s.keyed("b", 50)
			s.once(r)
			c.p.Reason, c.p.By = "the test", "tester"
			recalled, err := ledger.Pause(t.Context(), s.pool, c.p)
			if want := map[bool]int{true: 6, false: 3}[c.p.Key == ""]; err != nil || recalled != want {
				t.Errorf("%d attempts were recalled (%v), want %d", recalled, err, want)
			}
			s.want(`SELECT bool_and(outcome = 'not_sent' AND error = 'not sent: recalled, for it was paused: the test') FROM call_attempts`)
			s.once(r)
			if got := s.open(); got != c.open {
				t.Errorf("open %q while it is paused, want %q", got, c.open)
			}
			was, err := ledger.Resume(t.Context(), s.pool, c.p.What, c.p.Name, c.p.Key, ledger.By("tester"))
			if err != nil || !was {
				t.Errorf("resume: %v, %v", was, err)
			}
			again, err := ledger.Resume(t.Context(), s.pool, c.p.What, c.p.Name, c.p.Key, ledger.By("tester"))
			if err != nil || again {
				t.Errorf("resume again: %v, %v", again, err)
			}
			s.once(r)
			s.want(`SELECT count(*) = 6 FROM callq.call_open`)
			s.want(`SELECT count(*) = 2 AND bool_and(by = 'tester') FROM callq.call_audit WHERE change LIKE 'paused%' OR change LIKE 'resumed%'`)
			s.verify()
		})
	}
}

// Somebody's transaction on a claimed call's row keeps it from being recalled, and not its limit from being paused.
//
//callq:guarantee 12
func TestPauseBesideAHeldRow(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 2, time.Hour))
	s.calls("default", 3)
	s.once(r)
	holder := s.hold(`SELECT FROM callq.call_open WHERE call_id = 2 FOR UPDATE`)
	p := ledger.Paused{What: "limit", Name: "api", Author: ledger.Author{Reason: "x", By: "y"}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := ledger.Pause(ctx, s.pool, p); ended <- err }()
	s.eventually(`SELECT count(*) = 1 FROM callq.call_pauses WHERE name = 'api' AND until > clock_timestamp()`)
	cancel()
	if err := <-ended; err == nil {
		t.Error("the pause is whole while an attempt may start")
	}
	s.release(holder)
	if n, err := ledger.Pause(t.Context(), s.pool, p); err != nil || n != 2 {
		t.Errorf("recalled %d, %v; want 2", n, err)
	}
}

// What is claimed while a pause waits for the claim's lock is recalled too.
//
//callq:guarantee 7
func TestPauseDuringAClaim(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 6, time.Hour))
	s.calls("default", 1)
	s.once(r)
	s.calls("default", 1)
	claim := s.hold(`SELECT FROM callq.call_limits FOR NO KEY UPDATE`)
	paused := make(chan int, 1)
	go func() {
		pool := s.poolWith(parameter("default_transaction_isolation", "repeatable read"))
		n, err := ledger.Pause(context.Background(), pool, ledger.Paused{What: "limit", Name: "api", Author: ledger.Author{Reason: "x", By: "y"}})
		if err != nil {
			t.Error(err)
		}
		paused <- n
	}()
	s.eventually(waitingSQL, 1)
	if _, err := claim.Exec(t.Context(), `
		WITH called AS (UPDATE call_queue SET status = 'dispatched', attempts = 1 WHERE id = 2)
		INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		SELECT 2, 1, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs FROM callq.call_open`); err != nil {
		t.Fatal(err)
	}
	s.release(claim)
	if n := <-paused; n != 2 {
		t.Errorf("%d attempts were recalled, want 2", n)
	}
}

func TestPauseEnds(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 6, time.Hour))
	s.calls("default", 50)
	s.once(r)
	pause := ledger.Paused{What: "limit", Name: "api", For: new(time.Hour), Author: ledger.Author{Reason: "x", By: "y"}}
	if _, err := ledger.Pause(t.Context(), s.pool, pause); err != nil {
		t.Fatal(err)
	}
	if err := ledger.ShutLimit(t.Context(), s.pool, ledger.Shut{Limit: "api", After: time.Minute, First: time.Second, Most: time.Hour}); err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT until > clock_timestamp() + interval '55 min' AND spell IS NULL FROM callq.call_pauses`) // what the API says does not end it
	s.want(`SELECT count(*) = 1 FROM callq.call_audit WHERE what = 'limit' AND change LIKE ANY ('{paused%,closed%}')`)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_pauses SET until = clock_timestamp()`)
	s.once(r)
	s.want(`SELECT count(*) = 6 FROM callq.call_open`)
	if _, err := ledger.Pause(t.Context(), s.pool, ledger.Paused{What: "queue", Name: "nothing"}); !errors.Is(err, ledger.ErrUnknown) {
		t.Errorf("pause: %v, want ErrUnknown", err)
	}
}

// A call that costs more than a limit has since an operator set it waits for the configured rate. Others of its key go on.
func TestTooDearHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, perKey := range []bool{false, true} {
		t.Run(fmt.Sprintf("per key %v", perKey), func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.alive(100)
			l := sliding("api", 100, time.Hour)
			l.CountCost, l.PerKey = true, perKey
			r := rules(l)
			s.publish(r)
			s.set(10, time.Hour)
			s.exec(`INSERT INTO call_queue (key, cost) VALUES ('a', 50), ('a', 1), ('a', 1), ('a', 50), ('b', 11), ('b', 2)`)
			s.once(r)
			s.want(`SELECT array_agg(id ORDER BY id) = '{2,3,6}' FROM call_queue WHERE status = 'dispatched'`)
			s.want(`SELECT array_agg(id ORDER BY id) = '{1,4,5}' FROM callq.call_backlog`)
			s.once(r)
			s.want(`SELECT count(*) = 3 FROM callq.call_open`)

			if _, err := policy.Reset(t.Context(), s.pool, "api", ledger.By("tester")); err != nil {
				t.Fatal(err)
			}
			s.exec(`UPDATE callq.call_inbox SET at = now()`) // a while later
			s.once(r)
			s.want(`SELECT sum(cost) > 50 FROM callq.call_open`)
		})
	}
}
