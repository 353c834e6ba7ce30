package main

import (
	"fmt"
	"strings"
	"testing"
)

// Limits of every algorithm are shown, set, refused and verified in their own words.
func TestOperatorsOfShapes(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = `http: {listen: 'off'}
log: {level: error}
limits:
  bursty:  {rate: 10/s, algorithm: token_bucket, burst: 100}
  nightly: {rate: 2/1mo, algorithm: fixed_window, timezone: America/New_York}
  cps:     {rate: 10/s, algorithm: leaky_bucket}
  speeds:  {rate: [10_000/d, 10/s]}
  account: {rate: 5/h, per: key, overrides: {acct_1: 50/h}}
queues:
  q: {limits: [bursty, cps, speeds, account]}
  n: {limits: [nightly]}
`
	w.exec(`INSERT INTO call_workers VALUES ('w1', 'http', '{http}', '{}', 40, now(), now() + interval '1 h')`)
	w.exec(`INSERT INTO call_queue (queue, key) SELECT 'n', 'acct_1' FROM generate_series(1, 5)`)
	for range 3 { // the second finds the limits counted
		w.do("dispatch", "--once")
	}
	for i, c := range []struct {
		args string
		code int
		says []string
	}{
		{"limits list", 0, []string{
			"10 per 1s, token bucket, burst 100", "2 per 1mo, fixed window, America/New_York", "1 per 100ms, leaky bucket",
			"speeds/1d", "10000 per 1d, sliding window", "5 per 1h, sliding window, per key (1 of their own)",
		}},
		{"calls why 5", 0, []string{"limit nightly is full: 2 of 2 units (2 per 1mo, fixed window, America/New_York) are occupied", "-01 0"}}, // from the first of the next month
		{"limits forecast nightly", 0, []string{"2 per 1mo, fixed window", "-01 0"}},
		{"limits set bursty 5/s", 0, []string{"limit bursty: 5 per 1s, token bucket, burst 100, slack 500ms, send_within 100ms (set; config: 10 per 1s, token bucket, burst 100)"}},
		{"limits set nightly 3/3mo", 0, []string{"3 per 3mo, fixed window, America/New_York"}},
		{"limits set nightly 3/90m", 2, []string{"nightly is 3 per 3mo, fixed window, America/New_York: ", "not one of a calendar"}},
		{"limits set cps 4/s", 0, []string{"1 per 250ms, leaky bucket"}},
		{"limits set bursty 5/mo", 2, []string{"bursty is 5 per 1s, token bucket, burst 100: a window of 1mo needs algorithm: fixed_window"}},
		{"limits set speeds/1d 5/d", 0, []string{"limit speeds/1d: 5 per 1d, sliding window"}},
		{"limits set account 5/m", 2, []string{"account is 5 per 1h, sliding window: keys have units of their own in its window"}},
		{"limits reset nightly", 0, []string{"2 per 1mo, fixed window, America/New_York"}},
		{"verify", 0, []string{"2 per 1mo, fixed window, America/New_York", "every rule holds"}},
	} {
		a := w.run(strings.Fields(c.args)...)
		if a.code != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s%s", c.args, a.code, c.code, a.stdout, a.stderr)
		}
		for _, text := range c.says {
			if !strings.Contains(a.stdout+a.stderr, text) {
				t.Errorf("%s (%d) does not say %q:\n%s", c.args, i, text, fmt.Sprint(a.stdout, a.stderr))
			}
		}
	}
}
