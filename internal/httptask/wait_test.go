package httptask

import (
	"cmp"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What answers say of when to come again, as real limiters and APIs do, with other headers that they send beside.
func TestWaitForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name   string
		status int // 0: 429
		header string
		want   time.Duration
	}{
		{"nothing", 0, "", 0},
		{"milliseconds, OpenAI and Azure", 0, "retry-after-ms: 250 | retry-after: 1", 250 * time.Millisecond},
		{"milliseconds, Azure", 0, "x-ms-retry-after-ms: 1500", 1500 * time.Millisecond},
		{"a date that ends in UTC", 0, "Retry-After: Sun, 01 Mar 2026 12:00:30 UTC", 30 * time.Second},
		{"a name's, Nest", 0, "Retry-After-short: 1 | Retry-After-long: 9", 9 * time.Second},
		{"draft 6", 0, "RateLimit-Limit: 2 | RateLimit-Remaining: 0 | RateLimit-Reset: 10", 10 * time.Second},
		{"draft 6, with some left", 0, "RateLimit-Remaining: 1 | RateLimit-Reset: 10", 0},
		{"draft 7", 0, "RateLimit: limit=2, remaining=0, reset=10", 10 * time.Second},
		{"draft 7, with some left", 0, "RateLimit: limit=2, remaining=1, reset=10", 0},
		{"draft 8", 0, `RateLimit: "2-in-10sec"; r=0; t=8 | RateLimit-Policy: "2-in-10sec"; q=2; w=10`, 8 * time.Second},
		{"draft 8, the policy that has none left", 0, `RateLimit: "burst";r=0;t=8, "day";r=90;t=3600`, 8 * time.Second},
		{"seconds after, Discord", 0, "X-RateLimit-Reset-After: 0.75 | X-RateLimit-Reset: 1772366401.5", 750 * time.Millisecond},
		{"epoch seconds, GitHub", 0, "x-ratelimit-remaining: 0 | x-ratelimit-reset: 1772366460", time.Minute},
		{"epoch seconds with decimals, koa", 0, "X-RateLimit-Reset: 1772366400.5", 500 * time.Millisecond},
		{"epoch milliseconds", 0, "X-RateLimit-Reset: 1772366460000", time.Minute},
		{"seconds, fastify", 0, "x-ratelimit-reset: 7", 7 * time.Second},
		{"X's", 0, "x-rate-limit-remaining: 0 | x-rate-limit-reset: 1772366430", 30 * time.Second},
		{"epoch seconds by the server's clock", 0, "Date: Sun, 01 Mar 2026 12:00:20 GMT | x-ratelimit-reset: 1772366460", 40 * time.Second},
		{"in the past", 0, "x-ratelimit-reset: 1772366000", 0},
		{"durations, OpenAI", 0, "x-ratelimit-reset-requests: 6m0s | x-ratelimit-remaining-requests: 9 | x-ratelimit-reset-tokens: 120ms | x-ratelimit-remaining-tokens: 0", 120 * time.Millisecond},
		{"durations without what is left", 0, "x-ratelimit-reset-requests: 1m0s | x-ratelimit-reset-tokens: 120ms", time.Minute},
		{"times, Anthropic", 0, "anthropic-ratelimit-requests-remaining: 0 | anthropic-ratelimit-requests-reset: 2026-03-01T12:00:09Z | " +
			"anthropic-ratelimit-tokens-remaining: 5 | anthropic-ratelimit-tokens-reset: 2026-03-01T13:00:00Z | anthropic-ratelimit-requests-limit: 50", 9 * time.Second},
		{"Retry-After comes first", 0, "Retry-After: 3 | x-ratelimit-reset: 1772366460", 3 * time.Second},
		{"Retry-After of 0, and another", 0, "Retry-After: 0 | RateLimit-Reset: 4", 4 * time.Second},
		{"Shopify's bucket names no time", 0, "X-Shopify-Shop-Api-Call-Limit: 40/40", 0},
		{"403 for no limit", 403, "x-ratelimit-remaining: 40 | x-ratelimit-reset: 1772366460", 0},
		{"403, and says nothing of what is left", 403, "x-ratelimit-reset: 1772366460", 0},
		{"403, GitHub", 403, "x-ratelimit-remaining: 0 | x-ratelimit-reset: 1772366460", time.Minute},
		{"503 and 529", 529, "anthropic-ratelimit-requests-reset: 2026-03-01T12:00:09Z", 9 * time.Second},
		{"502 with Retry-After", 502, "Retry-After: 5", 5 * time.Second},
		{"504 with a limit's headers", 504, "x-ratelimit-reset: 1772366460", 0},
		{"413 with Retry-After", 413, "Retry-After: 5", 5 * time.Second},
		{"400 with Retry-After", 400, "Retry-After: 5", 0},
		{"for ever", 0, "x-ratelimit-reset: 99999999999999999999999", maxRetryAfter},
		{"a duration for ever", 0, "x-ratelimit-reset-requests: 999999h", maxRetryAfter},
		{"nonsense", 0, `Retry-After: soon | RateLimit: ;;=,"r=0 | x-ratelimit-reset: -5 | retry-after-ms: NaN | x-ratelimit-reset-tokens: 5x`, 0},
	} {
		header := http.Header{}
		for line := range strings.SplitSeq(c.header, " | ") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				header.Add(name, value)
			}
		}
		if got := waitOf(cmp.Or(c.status, http.StatusTooManyRequests), header, now); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Whatever a header holds, no wait is below 0 or beyond what may be asked for.
func FuzzWait(f *testing.F) {
	for _, s := range waitForms() {
		f.Add(strings.ReplaceAll(s.header, "*", "Requests-Reset"), "12", "0")
	}
	f.Add("Ratelimit", `"a";r=0;t=8`, "")
	f.Add("X-Ratelimit-Reset", "1e400", "0")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, name, value, remaining string) {
		header := http.Header{"X-Ratelimit-Remaining": {remaining}, "Date": {remaining}}
		header.Set(name, value)
		for _, status := range []int{403, 413, 429, 503, 529} {
			if wait := waitOf(status, header, now); wait < 0 || wait > maxRetryAfter {
				t.Errorf("%d %s: %q: %s", status, name, value, wait)
			}
		}
	})
}
