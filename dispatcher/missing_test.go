package dispatcher_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

const month = 31 * 24 * time.Hour

// charged has five calls charged to a limit of a month; the units of two come free in 3 s.
func (s *system) charged(r policy.Policy) {
	s.t.Helper()
	s.alive(100)
	s.calls("default", 5)
	s.once(r)
	s.start(time.Hour)
	s.finish()
	s.exec(`INSERT INTO callq.call_usage SELECT limit_name, key, clock_timestamp() - interval '31 days' * 1.001 + interval '3 s', 7, 2 FROM callq.call_usage
		GROUP BY 1, 2`)
	s.exec(`UPDATE callq.call_usage SET used = used - 2 WHERE shard <> 7`)
}

// pass has 3 s pass for what is known of the limits and their usage.
func (s *system) pass() {
	s.t.Helper()
	s.exec(`UPDATE callq.call_limits SET known_at = known_at - interval '3 s', missing_until = missing_until - interval '3 s'`)
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '3 s'`)
}

func (s *system) failOver() { s.exec(`UPDATE callq.call_limits SET epoch = 'older'`) }

// A failover stops no limit that is full: what is known to be charged comes free when it would have.
func TestFullLimitGoesOnAfterAFailover(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*policy.Limit){
		"in all":  func(*policy.Limit) {},
		"per key": func(l *policy.Limit) { l.PerKey = true },
	} {
		parallel(t, name, func(_ *testing.T, s *system) {
			api := sliding("api", 5, month)
			change(&api)
			r := rules(api)
			s.charged(r)
			s.failOver()
			s.calls("default", 5)
			s.once(r)
			s.want(`SELECT count(*) = 0 FROM callq.call_open`)
			if name == "in all" { // a running dispatcher knows when
				s.run(s.dispatcher(r).Run)
				s.eventually(`SELECT count(*) = 2 FROM callq.call_open`)
			} else {
				s.pass()
				s.once(r)
				s.want(`SELECT count(*) = 2 FROM callq.call_open`)
			}
			s.start(time.Hour)
			s.finish()
			s.once(r)
			s.want(`SELECT count(*) = 0 FROM callq.call_open`) // what was charged since is no room again
			s.want(`SELECT sum(used) = 7 FROM callq.call_usage`)
		})
	}
}

// The room that was left counts as used once.
//
//callq:guarantee 1
func TestRoomLeftAtAFailoverIsUsedOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 9, month))
	s.charged(r) // 4 are left
	s.failOver()
	s.calls("default", 9)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.pass()
	for range 2 {
		s.once(r)
		s.want(`SELECT count(*) = 2 FROM callq.call_open`)
	}
	s.exec(`UPDATE callq.call_limits SET missing_until = missing_until - window_size * 1.001 - interval '2 min'`) // what may be missing counts no more
	s.once(r)
	s.want(`SELECT count(*) = 6 FROM callq.call_open`)
}

// What was open is part of the room that was left: its unit may have been given back, and out again, whatever
// becomes of it here.
//
//callq:guarantee 1
func TestOpenAtAFailoverIsNotCountedTwice(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 7, month))
	s.charged(r)
	s.calls("default", 2)
	s.once(r)
	s.start(time.Hour, 6)
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_open SET epoch = 'older'`)
	s.failOver()
	s.calls("default", 9)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.want(`SELECT count(*) = 2 FROM call_attempts WHERE outcome = 'lost'`)
	s.pass()
	for range 2 {
		s.once(r)
		s.want(`SELECT count(*) = 2 FROM callq.call_open`)
	}
}

// A rate that is lowered or raised while units may be missing bounds those that were given out under the former.
//
//callq:guarantee 1
func TestLimitChangesWhileUnitsAreMissing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ units, claims int64 }{"lowered": {8, 1}, "raised": {20, 2}} {
		parallel(t, name, func(_ *testing.T, s *system) {
			r := rules(sliding("api", 9, month))
			s.charged(r)
			s.failOver()
			s.once(r)
			r.Limits[0].Rate.Units = c.units
			s.calls("default", 30)
			s.publish(r)
			s.pass()
			for range 2 {
				s.once(r)
				s.want(`SELECT count(*) = $1 FROM callq.call_open`, c.claims)
			}
		})
	}
}

// A token bucket is empty when the last of what may be missing has arrived, and fills from then on.
//
//callq:guarantee 1
func TestTokenBucketAfterAFailover(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(shaped(t, "api", "1/1h", limit.TokenBucket, 5, ""))
	s.once(r)
	s.failOver()
	s.calls("default", 9)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_limits SET missing_until = missing_until - interval '2 h 5 min', known_at = known_at - interval '2 h 5 min'`)
	s.once(r)
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)
}

// Who knows that nothing is missing opens the limit: what was left is given out at once.
func TestOpenLimit(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 9, month))
	s.charged(r)
	s.failOver()
	s.calls("default", 9)
	changes, err := policy.Open(t.Context(), s.pool, "api", ledger.Author{By: "an operator", Reason: "a clean switchover"}) // before any claim has seen it
	if err != nil || len(changes) != 1 {
		t.Fatal(changes, err)
	}
	s.once(r)
	s.want(`SELECT count(*) = 4 FROM callq.call_open`)
	s.want(`SELECT count(*) = 1 FROM callq.call_audit WHERE by = 'an operator' AND change = 'opened' AND reason = 'a clean switchover'`)
	report, err := verify.Run(t.Context(), s.pool, verify.Options{})
	if err != nil || !strings.Contains(strings.Join(report.RestsOn, "\n"), "a clean switchover") {
		t.Error(report, err)
	}
	if changes, err = policy.Open(t.Context(), s.pool, "api", ledger.Author{By: "an operator", Reason: "again"}); err != nil || len(changes) != 0 {
		t.Error(changes, err)
	}
	s.exec(`UPDATE callq.call_limits SET complete_since = NULL`)
	if _, err = policy.Open(t.Context(), s.pool, "api", ledger.Author{By: "an operator", Reason: "again"}); !errors.Is(err, policy.ErrUncounted) {
		t.Error(err)
	}
	if _, err = policy.Open(t.Context(), s.pool, "other", ledger.Author{By: "an operator", Reason: "again"}); !errors.Is(err, ledger.ErrUnknown) {
		t.Error(err)
	}
}

// What an operator said of a limit holds when its rate changes afterwards, for what may have been missing is the same.
func TestOpenedLimitStaysOpen(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 9, month))
	s.charged(r)
	s.failOver()
	s.exec(`DELETE FROM callq.call_epochs`) // the new epoch was not seen before
	s.once(r)
	if _, err := policy.Open(t.Context(), s.pool, "api", ledger.Author{By: "an operator", Reason: "a clean switchover"}); err != nil {
		t.Fatal(err)
	}
	s.calls("default", 30)
	r.Limits[0].Rate.Units = 8
	s.publish(r)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM callq.call_open`)
}

// What a limit was lowered by bounds what may be missing, after another failover too.
func TestLoweredRateAfterTwoFailovers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.publish(rules(sliding("api", 20, month)))
	r := rules(sliding("api", 9, month)) // 5 are known, and 4 may be missing
	s.charged(r)
	s.failOver()
	s.once(r)
	s.want(`SELECT known_less = 0 FROM callq.call_limits`) // nothing was missing when it was lowered first
	r.Limits[0].Rate.Units = 7
	s.publish(r)
	s.failOver()
	s.calls("default", 30)
	s.once(r)
	s.pass()
	s.want(`SELECT sum(used) FILTER (WHERE bucket > clock_timestamp() - interval '31 days' * 1.001) = 3 FROM callq.call_usage`)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
}

// Where the data are set back under a dispatcher, as by a restore in place, what was left of the limits counts as used, as
// after a failover: what was given out since the backup is in no table. Whoever comes later finds it so.
//
//callq:guarantee 1
func TestRestoredInPlace(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 2, time.Hour))
	d := s.dispatcher(r)
	s.turn(d)
	backup := one[int64](s, `SELECT nextval('callq.call_batch_seq')`)
	s.calls("default", 2)
	s.turn(d)
	s.start(time.Hour)
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)

	s.exec(`DELETE FROM callq.call_open`)
	s.exec(`DELETE FROM call_queue`)
	s.exec(`SELECT setval('callq.call_batch_seq', $1)`, backup)
	s.calls("default", 2)
	before := one[time.Time](s, `SELECT clock_timestamp()`)
	s.turn(d)
	s.want(`SELECT missing_until > $1::timestamptz + send_within + slack FROM callq.call_limits`, before)
	s.turn(d)
	s.turn(s.another(r))
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_limits SET missing_until = NULL`) // as if that time had passed
	s.turn(d)
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)
}

// Who learns of a restore after another has leaves alone what that one gave out since.
func TestRestoredUnderTwo(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 100, time.Hour))
	first, second := s.another(r), s.another(r)
	s.turn(first)
	backup := one[int64](s, `SELECT nextval('callq.call_batch_seq')`)
	for range 10 {
		for _, d := range []*dispatcher.Dispatcher{first, second} {
			s.calls("default", 1)
			s.tick(d)
		}
	}
	s.exec(`DELETE FROM callq.call_open`)
	s.exec(`DELETE FROM call_queue`)
	s.exec(`SELECT setval('callq.call_batch_seq', $1)`, backup)
	s.calls("default", 2)
	s.turn(first)
	s.exec(`UPDATE callq.call_limits SET missing_until = NULL`) // as if that time had passed
	s.turn(first)
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)
	s.start(time.Hour)
	s.calls("default", 2)
	s.turn(second)
	s.turn(second)
	s.want(`SELECT count(*) = 4 FROM callq.call_open`)
	s.want(`SELECT count(*) = 0 FROM call_attempts`)
}
