package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

func shaped(t *testing.T, name, rate string, algorithm limit.Algorithm, burst int64, zone string) policy.Limit {
	t.Helper()
	r, err := limit.Parse(rate, algorithm, burst, zone)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Limit{Name: name, Rate: r}
}

// opened is how many calls a tick claims, and ends them.
func (s *system) opened(r policy.Policy) int {
	s.t.Helper()
	s.once(r)
	n := one[int](s, `SELECT count(*) FROM callq.call_open`)
	if n > 0 {
		s.start(time.Hour)
		s.finish()
	}
	return n
}

// A leaky bucket gives out one at a time, and with a tolerance as many more as the API lets come too early.
//
//callq:guarantee 1
func TestTolerance(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.calls("default", 100)
	tolerant := shaped(t, "api", "1 per 10s, leaky bucket, tolerance 55s", limit.LeakyBucket, 0, "")
	s.once(rules(tolerant))
	if n := s.opened(rules(tolerant)); n != 6 {
		t.Errorf("%d were claimed, want 6", n)
	}
	s.verify()
	s.want(`SELECT rate = 6 AND window_size = '1 minute' AND shape = '{"algorithm": "leaky_bucket", "tolerance": 55000000000}' FROM callq.call_limits`)
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '30 seconds'`)
	if n := s.opened(rules(tolerant)); n != 0 {
		t.Errorf("%d were claimed within a minute, want none", n)
	}
	exact := rules(shaped(t, "api", "1 per 10s, leaky bucket", limit.LeakyBucket, 0, ""))
	s.once(exact)
	if n := s.opened(exact); n != 1 {
		t.Errorf("%d were claimed without the tolerance, want 1", n)
	}
}

// A sliding window counter gives out one at a time, so many that no estimate is over.
//
//callq:guarantee 1
func TestSlidingWindowCounter(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.calls("default", 100)
	r := rules(shaped(t, "api", "61/h", limit.SlidingWindowCounter, 0, ""))
	s.once(r)
	if n := s.opened(r); n != 1 {
		t.Errorf("%d were claimed, want 1", n)
	}
	s.verify()
	s.want(`SELECT rate = 1 AND window_size = '1 minute'
		AND shape = '{"algorithm": "sliding_window_counter", "period": "1h", "counted": 61}' FROM callq.call_limits`)
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '30 seconds'`)
	if n := s.opened(r); n != 0 {
		t.Errorf("%d were claimed within a minute, want none", n)
	}
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '31 seconds'`)
	if n := s.opened(r); n != 1 {
		t.Errorf("%d were claimed after a minute, want 1", n)
	}
}

// A token bucket gives out its burst, then what has come in since; what has not started has not left it.
//
//callq:guarantee 1
func TestTokenBucket(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.calls("default", 100)
	r := rules(shaped(t, "api", "1/h", limit.TokenBucket, 5, ""))
	s.once(r)
	s.once(r)
	s.want(`SELECT count(*) = 5 FROM callq.call_open`)
	s.start(time.Hour)
	s.finish()
	if n := s.opened(r); n != 0 {
		t.Errorf("%d more were claimed of an empty bucket", n)
	}
	s.verify()
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '170 minutes'`)
	if n := s.opened(r); n != 2 {
		t.Errorf("%d were claimed after nearly three hours, want 2", n)
	}
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '30 hours'`)
	if n := s.opened(r); n != 5 {
		t.Errorf("%d were claimed after a day, want 5", n)
	}
}

func TestTokenBucketPerKeyByCost(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	rule := shaped(t, "api", "1/h", limit.TokenBucket, 10, "")
	rule.PerKey, rule.CountCost = true, true
	s.exec(`INSERT INTO call_queue (key, cost) VALUES ('a', 7), ('a', 4), ('b', 10), ('c', 11)`)
	s.once(rules(rule))
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{1,3}' FROM callq.call_open`)
	s.want(`SELECT error_message = 'cost 11 is over limit api, which allows 1 per 1h, token bucket, burst 10' FROM call_queue WHERE id = 4`)
	s.start(time.Hour)
	s.finish()
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '80 minutes'`)
	s.once(rules(rule)) // 10 - 7 + 1
	s.want(`SELECT array_agg(call_id) = '{2}' FROM callq.call_open`)
}

// A fixed window gives all of its units out in each window of its calendar.
//
//callq:guarantee 1
func TestFixedWindow(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.calls("default", 100)
	r := rules(shaped(t, "api", "3/mo", limit.FixedWindow, 0, "Asia/Tokyo"))
	if n := s.opened(r) + s.opened(r); n != 3 {
		t.Errorf("%d were claimed, want 3", n)
	}
	s.want(`SELECT bool_and(bucket = date_trunc('hour', bucket)) FROM callq.call_usage`)
	s.verify()
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '32 days'`)
	if n := s.opened(r); n != 3 {
		t.Errorf("%d were claimed a month later, want 3", n)
	}
}

// A limit that becomes another algorithm's counts what was used under the former.
//
//callq:guarantee 1
func TestAlgorithmIsChanged(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.calls("default", 100)
	if n := s.opened(rules(sliding("api", 4, time.Hour))); n != 4 {
		t.Fatalf("%d were claimed", n)
	}
	for _, c := range []struct {
		rule policy.Limit
		want int
	}{
		{shaped(t, "api", "6/mo", limit.FixedWindow, 0, ""), 2},
		{shaped(t, "api", "1/h", limit.TokenBucket, 9, ""), 3},
		{sliding("api", 9, time.Hour), 0},
	} {
		if n := s.opened(rules(c.rule)); n != c.want {
			t.Errorf("as %s: %d more were claimed, want %d", c.rule.Rate, n, c.want)
		}
		s.verify()
	}
}

// Keys may have another rate than the others; lowering it recalls what is beyond.
//
//callq:guarantee 1
func TestOverrides(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	for _, key := range []string{"", "big", "small", "x"} {
		s.keyed(key, 10)
	}
	rule := perKey("each", 3, time.Hour)
	rule.Overrides = map[string]int64{"big": 7, "small": 1}
	s.once(rules(rule))
	if got := s.open(); got != ":3 big:7 small:1 x:3" {
		t.Errorf("open %s", got)
	}
	rule.Overrides = map[string]int64{"big": 5, "": 4}
	s.once(rules(rule))
	if got := s.open(); got != ":4 big:5 small:3 x:3" {
		t.Errorf("open %s after the overrides were changed", got)
	}
	s.start(time.Hour)
	s.finish()
	s.once(rules(rule))
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.verify()
	s.exec(`UPDATE callq.call_limit_versions SET overrides = '{"big": 4}'`)
	report, err := verify.Run(t.Context(), s.pool, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range report.Findings {
		if f.CallID > 0 { // beside what says that the versions were changed
			found = append(found, f.Detail)
		}
	}
	if all := strings.Join(found, "; "); len(found) != 2 || !strings.Contains(all, "number 5 of 4 for key big") || !strings.Contains(all, "number 4 of 3") {
		t.Errorf("verify found %q", found)
	}
}

// What a call may cost is its key's matter.
func TestOverridesByCost(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	rule := perKey("each", 10, time.Hour)
	rule.CountCost, rule.Overrides = true, map[string]int64{"big": 100, "small": 5}
	s.exec(`INSERT INTO call_queue (key, cost) VALUES ('big', 100), ('big', 101), ('small', 6), ('small', 5), ('x', 11), ('x', 10)`)
	s.once(rules(rule))
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{1,4,6}' FROM callq.call_open`)
	s.want(`SELECT array_agg(id ORDER BY id) = '{2,3,5}' FROM call_queue WHERE status = 'failed'`)
}

// An operator's rate keeps the algorithm, until it is reset, whatever is published meanwhile.
func TestSetKeepsTheShape(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	calendar := shaped(t, "calendar", "10/1d", limit.FixedWindow, 0, "Europe/Berlin")
	bucket := shaped(t, "bucket", "10/s", limit.TokenBucket, 50, "")
	own := perKey("own", 3, time.Hour)
	own.Overrides = map[string]int64{"big": 7}
	r := rules(calendar, bucket, own)
	s.publish(r)
	set := func(name string, to limit.Rate) error {
		_, err := policy.Override(context.Background(), s.pool, name, to, ledger.By("tester"))
		return err
	}
	for name, to := range map[string]limit.Rate{
		"calendar": {Units: 5, Shape: limit.Shape{Algorithm: limit.FixedWindow, Period: "1mo"}},
		"bucket":   {Units: 5, Window: time.Minute}, "own": {Units: 2, Window: time.Hour},
	} {
		if err := set(name, to); err != nil {
			t.Fatal(err)
		}
	}
	s.publish(r)
	s.want(`SELECT shape = '{"algorithm": "fixed_window", "period": "1mo", "timezone": "Europe/Berlin"}' AND rate = 5 FROM callq.call_limits WHERE name = 'calendar'`)
	s.want(`SELECT shape = '{"algorithm": "token_bucket", "period": "1m", "burst": 50}' AND rate = 5 FROM callq.call_limits WHERE name = 'bucket'`)
	s.want(`SELECT rate = 2 AND overrides = '{"big": 7}' FROM callq.call_limits WHERE name = 'own'`)
	for name, to := range map[string]limit.Rate{
		"calendar": {Units: 5, Window: time.Millisecond}, "bucket": {Units: 5, Shape: limit.Shape{Algorithm: limit.FixedWindow, Period: "1mo"}},
		"own": {Units: 2, Window: time.Minute},
	} {
		if err := set(name, to); !errors.Is(err, policy.ErrRate) {
			t.Errorf("%s set to %+v: %v, want ErrRate", name, to, err)
		}
	}
	for _, name := range []string{"calendar", "bucket", "own"} {
		if _, err := policy.Reset(t.Context(), s.pool, name, ledger.By("tester")); err != nil {
			t.Fatal(err)
		}
	}
	s.want(`SELECT shape ->> 'period' = '1d' AND rate = 10 FROM callq.call_limits WHERE name = 'calendar'`)
	s.want(`SELECT shape ->> 'period' = '1s' AND rate = 10 FROM callq.call_limits WHERE name = 'bucket'`)
	if again := s.publish(r); len(again) > 0 {
		t.Errorf("publishing the same again changed %v", again)
	}
}
