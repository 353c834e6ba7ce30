package config

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callq/callq/internal/limit"
)

// A file with all there is of limits, budgets, queues and workers means what it says.
func TestFileOfEverything(t *testing.T) {
	t.Parallel()
	c, err := Load(Source{Path: "testdata/everything.yaml", Environ: []string{"DATABASE_URL=postgres://h/d", "REDIS_URL=redis://h", "STRIPE_KEY=k"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, l := range c.Limits {
		got[name] = strings.Join(l.Rate, "; ")
	}
	if diff := cmp.Diff(map[string]string{
		"stripe": "100 per 1h, sliding window", "per-account": "5 per 1s, sliding window", "gpt-rpm": "500 per 1m, sliding window",
		"gpt-tokens": "90000 per 1m, sliding window", "bursty": "10 per 1s, token bucket, burst 100",
		"nightly": "10000 per 1d, fixed window, America/New_York", "cps": "1 per 100ms, leaky bucket",
		"two-speeds": "10 per 1s, sliding window; 10000 per 1d, sliding window", "sockets": "", "per-phone": "",
	}, got); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if b := c.Budgets["search-api"]; b.Burst != 100 || b.OnOutage != "open" {
		t.Errorf("budget %+v", b)
	}
	if names := slices.Sorted(maps.Keys(c.Queues)); !slices.Equal(names, []string{"default", "egress-a", "payments", "research"}) || len(c.Queues["research"].Hours) == 0 {
		t.Errorf("queues %v, %+v", names, c.Queues["research"])
	}
}

// What each algorithm makes of its keys.
func TestWindows(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
limits:
  stripe:      {rate: 100/1h}
  slow:        {rate: 100 per 1h, slack: 2s}
  per-account: {rate: 5/s, per: key, overrides: {acct_1: 50/s, "": 1 per 1000ms, "odd, 'key'": 6/s}}
  bursty:      {rate: 10/s, algorithm: token_bucket, burst: 100}
  nightly:     {rate: 10_000/1d, algorithm: fixed_window, timezone: America/New_York}
  monthly:     {rate: 5/mo, algorithm: fixed_window, per: key, overrides: {big: 50/1mo}}
  cps:         {rate: 10/s, algorithm: leaky_bucket}
  two-speeds:  {rate: [10_000/d, 10/s], send_within: 50ms}
  per-phone:   {concurrency: 1, per: key, overrides: {hotline: 9}}
`, map[string]string{
		"CALLQ_LIMITS_STRIPE_RATE": "7 per 1h, sliding window,8/d", "CALLQ_LIMITS_BURSTY_BURST": "90", "CALLQ_LIMITS_NIGHTLY_TIMEZONE": "Asia/Tokyo",
		"CALLQ_LIMITS_MONTHLY_OVERRIDES": "big=60/mo, small = 1/mo",
	}, nil)
	type window struct {
		name, rate string
		own        map[string]int64
		slack      time.Duration
		sendWithin time.Duration
	}
	for name, want := range map[string][]window{
		"stripe": {
			{"", "7 per 1h, sliding window", nil, limit.DefaultSlack(time.Hour), 5 * time.Second},
			{"/1d", "8 per 1d, sliding window", nil, time.Minute, 5 * time.Second},
		},
		"slow":        {{"", "100 per 1h, sliding window", nil, 2 * time.Second, 5 * time.Second}},
		"per-account": {{"", "5 per 1s, sliding window", map[string]int64{"acct_1": 50, "": 1, "odd, 'key'": 6}, 500 * time.Millisecond, 100 * time.Millisecond}},
		"bursty":      {{"", "10 per 1s, token bucket, burst 90", nil, 500 * time.Millisecond, 100 * time.Millisecond}},
		"nightly":     {{"", "10000 per 1d, fixed window, Asia/Tokyo", nil, time.Minute, 5 * time.Second}},
		"monthly":     {{"", "5 per 1mo, fixed window, UTC", map[string]int64{"big": 60, "small": 1}, time.Minute, 5 * time.Second}},
		"cps":         {{"", "1 per 100ms, leaky bucket", nil, 500 * time.Millisecond, 100 * time.Millisecond}},
		"two-speeds": {
			{"", "10 per 1s, sliding window", nil, 500 * time.Millisecond, 50 * time.Millisecond},
			{"/1d", "10000 per 1d, sliding window", nil, time.Minute, 50 * time.Millisecond},
		},
		"per-phone": {{"", "1 at once", map[string]int64{"hotline": 9}, 500 * time.Millisecond, 5 * time.Second}},
	} {
		var got []window
		for _, w := range c.Limits[name].Windows {
			got = append(got, window{w.Suffix, w.Rate.String(), w.Overrides, w.Slack, w.SendWithin})
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(window{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
