package httptask

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// noon is when the answers of these tests were read.
func noon() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// answerOf is an answer with headers as in "A: 1 | B: 2".
func answerOf(status int, headers string) *Answer {
	a := &Answer{Status: status, Header: http.Header{}, At: noon()}
	for line := range strings.SplitSeq(headers, " | ") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			a.Header.Add(name, value)
		}
	}
	return a
}

// waitOf is how long an answer that is a refusal asks to wait.
func waitOf(status int, header http.Header, now time.Time) time.Duration {
	if r := (&Answer{Status: status, Header: header, At: now}).Refusal(Forms{}); r != nil {
		return r.After
	}
	return 0
}

// shown is a refusal as the tables of these tests have it: "none", "bare", "unsure", or its wait, then "own" and its names.
func shown(r *Refusal) string {
	switch {
	case r == nil:
		return "none"
	case r.Unsure && reflect.DeepEqual(*r, Refusal{Unsure: true}):
		return "unsure"
	case !r.Named && reflect.DeepEqual(*r, Refusal{Names: r.Names}):
		return strings.Join(append([]string{"bare"}, r.Names...), " ")
	case r.Unsure || !r.Named:
		return fmt.Sprintf("%+v", *r)
	}
	text := r.After.String()
	if r.Own {
		text += " own"
	}
	return strings.Join(append([]string{text}, r.Names...), " ")
}

// What a 429 says of when to come again, as real limiters and APIs do, with other headers that they send beside.
func TestWaitForms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, header, want string }{
		{"nothing, HAProxy and Envoy", "", "bare"},
		{"milliseconds, OpenAI and Azure", "retry-after-ms: 250 | retry-after: 1", "250ms"},
		{"milliseconds with decimals", "retry-after-ms: 250.5", "250.5ms"},
		{"milliseconds, Azure", "x-ms-retry-after-ms: 1500", "1.5s"},
		{"seconds, httprate", "Retry-After: 10 | X-RateLimit-Limit: 2 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1772366401", "10s"},
		{"seconds with decimals, rate-limiter-flexible", "Retry-After: 0.419", "419ms"},
		{"a date", "Retry-After: Sun, 01 Mar 2026 12:00:30 GMT", "30s"},
		{"a date, RFC 850", "Retry-After: Sunday, 01-Mar-26 12:00:30 GMT", "30s"},
		{"a date, asctime", "Retry-After: Sun Mar  1 12:00:30 2026", "30s"},
		{"a date that ends in UTC", "Retry-After: Sun, 01 Mar 2026 12:00:30 UTC", "30s"},
		{"a name's, Nest", "Retry-After-short: 1", "1s short"},
		{"names', Nest", "Retry-After-short: 1 | Retry-After-long: 9", "9s long"},
		{"names' with the same wait", "Retry-After-short: 9 | Retry-After-Long: 9", "9s long short"},
		{"draft 6, express", "RateLimit-Policy: 2;w=10 | RateLimit-Limit: 2 | RateLimit-Remaining: 0 | RateLimit-Reset: 10", "10s"},
		{"draft 6, with some left", "RateLimit-Remaining: 1 | RateLimit-Reset: 10", "bare"},
		{"epoch seconds, GitLab", "RateLimit-Remaining: 0 | RateLimit-Reset: 1772366460", "1m0s"},
		{"draft 7, express", "RateLimit: limit=2, remaining=0, reset=10", "10s"},
		{"draft 7 in another order", "RateLimit: reset=10,limit=2,remaining=0", "10s"},
		{"draft 7, with some left", "RateLimit: limit=2, remaining=1, reset=10", "bare"},
		{"draft 8, express", `RateLimit: "2-in-10sec"; r=0; t=8 | RateLimit-Policy: "2-in-10sec"; q=2; w=10; pk=:MTJjYTE3YjQ5YWYy:`, "8s 2-in-10sec"},
		{"draft 8, the policy that has none left", `RateLimit: "burst";r=0;t=8, "day";r=90;t=3600`, "8s burst"},
		{"draft 8, two that have none left", `RateLimit: "burst";r=0;t=8, "Day";r=0;t=3600`, "1h0m0s day"},
		{"draft 8, two with the same wait", `RateLimit: "b";r=0;t=8, "a";r=0;t=8`, "8s b a"},
		{"draft 8, two parts of one limit", `RateLimit: "b";r=0;t=8;pk=:YQ==:, "b";r=0;t=8;pk=:Yg==:`, "8s b"},
		{"draft 8 in two headers", `RateLimit: "burst";r=5;t=8 | RateLimit: "day";r=0;t=60`, "1m0s day"},
		{"draft 8, all with some left", `RateLimit: "burst";r=1;t=8, "day";r=90;t=3600`, "bare"},
		{"draft 8 in another order", `RateLimit: "burst";pk=:cg==:;t=8;r=0`, "8s burst"},
		{"draft 8 with quotes that hold its marks", `RateLimit: "a,b;r=9;t=1=\"remaining=\\";t=8;r=0, "c";r=3;t=99`, `8s a,b;r=9;t=1="remaining=\`},
		{"draft 8 with a bare word", "RateLimit: default;r=0;t=8", "8s default"},
		{"draft 8 without a time", `RateLimit: "burst";r=0`, "bare burst"},
		{"draft 8 with a name that is not ASCII", "RateLimit: \"b\u00fcrst\";r=0;t=8", "8s"},
		{"seconds after, Discord", "X-RateLimit-Limit: 5 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset-After: 0.75 | X-RateLimit-Reset: 1772366401.5 | " +
			"X-RateLimit-Bucket: abcd1234 | X-RateLimit-Scope: user", "750ms"},
		{"a limit that is shared, Discord", "X-RateLimit-Remaining: 9 | X-RateLimit-Reset-After: 1.5 | X-RateLimit-Scope: shared", "1.5s"},
		{"epoch seconds with decimals, Discord", "X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1772366401.5", "1.5s"},
		{"seconds, Slack", "Retry-After: 30", "30s"},
		{"epoch seconds, GitHub", "x-ratelimit-remaining: 0 | x-ratelimit-reset: 1772366460", "1m0s"},
		{"less than nothing left", "x-ratelimit-remaining: -3 | x-ratelimit-reset: 1772366460", "1m0s"},
		{"less than one left", "x-ratelimit-remaining: 0.5 | x-ratelimit-reset: 1772366460", "1m0s"},
		{"epoch seconds with decimals, koa", "Retry-After: 0 | X-RateLimit-Reset: 1772366400.5", "500ms"},
		{"epoch milliseconds", "X-RateLimit-Reset: 1772366460000", "1m0s"},
		{"seconds, fastify", "x-ratelimit-limit: 2 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 7", "7s"},
		{"epoch seconds, ulule", "X-RateLimit-Limit: 2 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1772366409", "9s"},
		{"seconds until full, throttled", "Retry-After: 1 | X-RateLimit-Limit: 1 | X-RateLimit-Reset: 3", "1s"},
		{"a date as a reset", "x-ratelimit-reset: Sun, 01 Mar 2026 12:00:30 GMT", "30s"},
		{"X's", "x-rate-limit-remaining: 0 | x-rate-limit-reset: 1772366430", "30s"},
		{"epoch seconds by the server's clock", "Date: Sun, 01 Mar 2026 12:00:20 GMT | x-ratelimit-reset: 1772366460", "40s"},
		{"durations, OpenAI", "x-ratelimit-reset-requests: 6m0s | x-ratelimit-remaining-requests: 9 | x-ratelimit-reset-tokens: 120ms | x-ratelimit-remaining-tokens: 0", "120ms tokens"},
		{"durations without what is left", "x-ratelimit-reset-requests: 1m0s | x-ratelimit-reset-tokens: 120ms", "1m0s requests"},
		{"seconds, Nest's names", "X-RateLimit-Reset-long: 10 | X-RateLimit-Remaining-long: 0", "10s long"},
		{"times, Anthropic", "anthropic-ratelimit-requests-remaining: 0 | anthropic-ratelimit-requests-reset: 2026-03-01T12:00:09Z | " +
			"anthropic-ratelimit-tokens-remaining: 5 | anthropic-ratelimit-tokens-reset: 2026-03-01T13:00:00Z | anthropic-ratelimit-requests-limit: 50", "9s requests"},
		{"a time, Anthropic's longer names", "anthropic-ratelimit-input-tokens-remaining: 0 | anthropic-ratelimit-input-tokens-reset: 2026-03-01T12:00:09Z", "9s input-tokens"},
		{"Retry-After comes first", `Retry-After: 3 | RateLimit: "day";r=0;t=60 | x-ratelimit-reset: 1772366460`, "3s day"},
		{"Retry-After beside named limits, OpenAI", "Retry-After: 3 | x-ratelimit-remaining-requests: 50 | x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 2.9s", "3s tokens"},
		{"Shopify's bucket names no time", "X-Shopify-Shop-Api-Call-Limit: 40/40", "bare"},

		{"Retry-After of 0, koa", "Retry-After: 0", "0s"},
		{"Retry-After of 0, and another", "Retry-After: 0 | RateLimit-Reset: 4", "4s"},
		{"0 milliseconds are no limit named ms", "retry-after-ms: 0", "0s"},
		{"0 seconds after are no limit named after", "X-RateLimit-Reset-After: 0.000", "0s"},
		{"a name's 0", "Retry-After-short: 0", "0s short"},
		{"a date that is over", "Retry-After: Sun, 01 Mar 2026 11:59:59 GMT", "0s"},
		{"epoch seconds that are over", "x-ratelimit-reset: 1772366000", "0s"},
		{"a policy's 0", `RateLimit: "burst";r=0;t=0`, "0s burst"},
		{"what is over of a limit with some left", "x-ratelimit-remaining: 3 | x-ratelimit-reset: 1772366000", "bare"},

		{"for ever", "x-ratelimit-reset: 99999999999999999999999", "24h0m0s"},
		{"a duration for ever", "x-ratelimit-reset-requests: 999999h", "24h0m0s requests"},
		{"a policy for ever", `RateLimit: "a";r=0;t=` + strings.Repeat("9", 400), "24h0m0s a"},
		{"a time for ever", "anthropic-ratelimit-requests-reset: 9999-03-01T12:00:09Z", "24h0m0s requests"},
		{"a huge name", "Retry-After-" + strings.Repeat("x", 1000) + ": 5", "5s"},
		{"nonsense", `Retry-After: soon | RateLimit: ;;=,"r=0 | x-ratelimit-reset: -5 | retry-after-ms: NaN | x-ratelimit-reset-tokens: 5x | x-ratelimit-reset-after: -5s`, "bare"},
		{"negative", "Retry-After: -5 | x-ratelimit-reset: -5s", "bare"},
	} {
		if got := shown(answerOf(http.StatusTooManyRequests, c.header).Refusal(Forms{})); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Which statuses are refusals with what.
func TestRefusalStatuses(t *testing.T) {
	t.Parallel()
	own := Forms{Wait: []string{"X-Mine"}}
	statuses := []int{0, 101, 200, 204, 301, 304, 400, 401, 403, 404, 408, 413, 425, 429, 499, 500, 502, 503, 504, 507, 529, 599, 600, 999}
	for _, c := range []struct {
		name, header string
		want         map[int]string // the others: none
	}{
		{"nothing", "", map[int]string{429: "bare", 503: "unsure", 529: "unsure"}},
		{"Retry-After", "Retry-After: 5", map[int]string{403: "5s", 413: "5s", 429: "5s", 502: "5s", 503: "5s", 504: "5s", 529: "5s"}},
		{"in milliseconds", "retry-after-ms: 5000", map[int]string{403: "5s", 413: "5s", 429: "5s", 502: "5s", 503: "5s", 504: "5s", 529: "5s"}},
		{"of a name", "Retry-After-a: 5", map[int]string{403: "5s a", 413: "5s a", 429: "5s a", 502: "5s a", 503: "5s a", 504: "5s a", 529: "5s a"}},
		{"of 0", "Retry-After: 0", map[int]string{403: "0s", 413: "0s", 429: "0s", 502: "0s", 503: "0s", 504: "0s", 529: "0s"}},
		{"unreadable", "Retry-After: soon", map[int]string{429: "bare", 503: "unsure", 529: "unsure"}},
		{"a reset", "x-ratelimit-reset: 60", map[int]string{429: "1m0s", 503: "1m0s", 529: "1m0s"}},
		{"a reset with nothing left, GitHub", "x-ratelimit-remaining: 0 | x-ratelimit-reset: 60", map[int]string{403: "1m0s", 429: "1m0s", 503: "1m0s", 529: "1m0s"}},
		{"a reset that is over with nothing left", "x-ratelimit-remaining: 0 | x-ratelimit-reset: 0", map[int]string{403: "0s", 429: "0s", 503: "0s", 529: "0s"}},
		{"a reset with some left", "x-ratelimit-remaining: 40 | x-ratelimit-reset: 60", map[int]string{429: "bare", 503: "unsure", 529: "unsure"}},
		{"nothing left, and no time", "x-ratelimit-remaining: 0", map[int]string{429: "bare", 503: "unsure", 529: "unsure"}},
		{"a name's reset with nothing left", "x-ratelimit-remaining-a: 0 | x-ratelimit-reset-a: 60", map[int]string{403: "1m0s a", 429: "1m0s a", 503: "1m0s a", 529: "1m0s a"}},
		{"a policy with nothing left", `RateLimit: "a";r=0;t=60`, map[int]string{403: "1m0s a", 429: "1m0s a", 503: "1m0s a", 529: "1m0s a"}},
		{"a policy with some left", `RateLimit: "a";r=1;t=60`, map[int]string{429: "bare", 503: "unsure", 529: "unsure"}},
		{"a reset after, beside nothing left", "RateLimit-Remaining: 0 | x-ratelimit-reset-after: 60", map[int]string{403: "1m0s", 429: "1m0s", 503: "1m0s", 529: "1m0s"}},
		{"one's own", "X-Mine: 5", map[int]string{
			400: "5s own", 401: "5s own", 403: "5s own", 404: "5s own", 408: "5s own", 413: "5s own", 425: "5s own", 429: "5s own", 499: "5s own",
			500: "5s own", 502: "5s own", 503: "5s own", 504: "5s own", 507: "5s own", 529: "5s own", 599: "5s own",
		}},
		{"one's own of 0", "X-Mine: 0", map[int]string{403: "0s own", 413: "0s own", 429: "0s own", 502: "0s own", 503: "0s own", 504: "0s own", 529: "0s own"}},
		{"one's own, unreadable", "X-Mine: x", map[int]string{429: "bare", 503: "unsure", 529: "unsure"}},
	} {
		for _, status := range statuses {
			want := c.want[status]
			if want == "" {
				want = "none"
			}
			if got := shown(answerOf(status, c.header).Refusal(own)); got != want {
				t.Errorf("%d with %s: %s, want %s", status, c.name, got, want)
			}
		}
	}
}

// A limit's configuration adds headers, and takes them away.
func TestConfiguredForms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, wait, off, header, want string
	}{
		{"seconds", "X-Mine", "", "x-mine: 5", "5s own"},
		{"seconds with decimals", "X-Mine", "", "x-mine: 0.5", "500ms own"},
		{"epoch seconds", "X-Mine", "", "x-mine: 1772366460", "1m0s own"},
		{"epoch milliseconds", "X-Mine", "", "x-mine: 1772366460000", "1m0s own"},
		{"a duration", "X-Mine", "", "x-mine: 1m30s", "1m30s own"},
		{"an RFC 3339 time", "X-Mine", "", "x-mine: 2026-03-01T13:00:09+01:00", "9s own"},
		{"a date", "X-Mine", "", "x-mine: Sun, 01 Mar 2026 12:00:30 GMT", "30s own"},
		{"a date, RFC 850", "X-Mine", "", "x-mine: Sunday, 01-Mar-26 12:00:30 GMT", "30s own"},
		{"a date, asctime", "X-Mine", "", "x-mine: Sun Mar  1 12:00:30 2026", "30s own"},
		{"a date that ends in UTC", "X-Mine", "", "x-mine: Sun, 01 Mar 2026 12:00:30 UTC", "30s own"},
		{"an exponent is none", "X-Mine", "", "x-mine: 9e99 | x-mine-too: 1", "bare"},
		{"for longer than a day", "X-Mine", "", "x-mine: 86401", "24h0m0s own"},
		{"it comes first", "X-Mine", "", "x-mine: 5 | Retry-After: 60", "5s own"},
		{"it is over", "X-Mine", "", "x-mine: 0 | Retry-After: 60", "1m0s"},
		{"both are over", "X-Mine", "", "x-mine: 0 | Retry-After: 0", "0s own"},
		{"it cannot be read", "X-Mine", "", "x-mine: later | Retry-After: 60", "1m0s"},
		{"it is not there", "X-Mine", "", "Retry-After: 60", "1m0s"},
		{"of two, the first", "X-A X-B", "", "x-a: 5 | x-b: 60", "5s own"},
		{"of two, the one ahead", "X-A X-B", "", "x-a: 0 | x-b: 60", "1m0s own"},
		{"with *, the longest", "X-Mine-*", "", "x-mine-a: 5 | x-mine-b: 60 | x-mine: 90", "1m0s own"},
		{"with *, all that begin so", "X-Mi*", "", "x-mine: 5 | x-other: 60", "5s own"},
		{"one's own whatever remains", "X-Ratelimit-Reset", "", "x-ratelimit-remaining: 9 | x-ratelimit-reset: 5", "5s own"},

		{"without Retry-After", "", "Retry-After", "Retry-After: 5 | x-ratelimit-reset: 60", "1m0s"},
		{"without any", "", "Retry-After", "Retry-After: 5", "bare"},
		{"without one of a *", "", "X-Ratelimit-Reset-Tokens", "x-ratelimit-reset-tokens: 60 | x-ratelimit-reset-requests: 5", "5s requests"},
		{"without one of Anthropic's", "", "Anthropic-Ratelimit-Tokens-Reset", "anthropic-ratelimit-tokens-reset: 60 | anthropic-ratelimit-requests-reset: 5", "5s requests"},
		{"without those that begin so", "", "Anthropic-Ratelimit-*", "anthropic-ratelimit-tokens-reset: 60", "bare"},
		{"without a part of those", "", "X-Ratelimit-Reset-T*", "x-ratelimit-reset-tokens: 60 | x-ratelimit-reset-requests: 5", "5s requests"},
		{"without all", "", "*", "Retry-After: 5 | x-ratelimit-reset: 60", "bare"},
		{"without what is left", "", "X-Ratelimit-Remaining", "x-ratelimit-remaining: 9 | x-ratelimit-reset: 5", "5s"},
		{"Date is read all the same", "", "*", "Date: Sun, 01 Mar 2026 12:00:20 GMT", "bare"},
		{"without one that one has oneself", "Retry-After", "Retry-After", "Retry-After: 1m", "1m0s own"},
		{"by the server's clock", "X-Mine", "*", "Date: Sun, 01 Mar 2026 12:00:20 GMT | x-mine: Sun, 01 Mar 2026 12:00:30 GMT", "10s own"},
	} {
		a := answerOf(http.StatusTooManyRequests, c.header)
		before := a.Header.Clone()
		if got := shown(a.Refusal(Forms{Wait: strings.Fields(c.wait), Off: strings.Fields(c.off)})); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if !reflect.DeepEqual(a.Header, before) { // the ledger keeps it
			t.Errorf("%s: the answer's headers are %v now, and were %v", c.name, a.Header, before)
		}
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, wait, off, header, want string }{
		{"nothing", "", "", "", ""},
		{"all can be read", "", "", `Retry-After: 0 | retry-after-ms: 5 | RateLimit: "a";r=5 | x-ratelimit-reset: 0 | x-ratelimit-reset-a: 5ms`, ""},
		{
			"none can", "", "", "x-ratelimit-reset: -5 | Retry-After: soon | retry-after-ms: 5s | RateLimit: ;;= | retry-after-a: x | anthropic-ratelimit-a-reset: x | ratelimit-reset: NaN",
			"Anthropic-Ratelimit-A-Reset Ratelimit Ratelimit-Reset Retry-After Retry-After-A Retry-After-Ms X-Ratelimit-Reset",
		},
		{"of a success, too", "", "", "x-rate-limit-reset: x | x-ratelimit-reset-after: y | x-ms-retry-after-ms: z", "X-Ms-Retry-After-Ms X-Rate-Limit-Reset X-Ratelimit-Reset-After"},
		{"quotes without end", "", "", `RateLimit: "a;r=0;t=5`, "Ratelimit"},
		{"a negative duration", "", "", "x-ratelimit-reset: -5s", "X-Ratelimit-Reset"},
		{"an empty one", "", "", "Retry-After: ", "Retry-After"},
		{"some policies can be read", "", "", `RateLimit: "a";r=x, "b";t=5`, ""},
		{"others are not of the table", "", "", "x-ratelimit-limit: x | anthropic-ratelimit-a-limit: x | x-mine: x", ""},
		{"off", "", "Retry-After X-Ratelimit-*", "Retry-After: soon | x-ratelimit-reset-a: x | ratelimit-reset: x", "Ratelimit-Reset"},
		{"one's own reads more", "Retry-After", "", "Retry-After: 5s", ""},
		{"one's own cannot either", "Retry-*", "", "Retry-After: soon", "Retry-After"},
	} {
		for _, status := range []int{200, 429} {
			got := answerOf(status, c.header).Malformed(Forms{Wait: strings.Fields(c.wait), Off: strings.Fields(c.off)})
			if !slices.Equal(got, strings.Fields(c.want)) {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
		}
	}
}

// Whatever a header holds, no wait is below 0 or beyond what may be asked for, and no number below what says that it is unknown.
func FuzzWait(f *testing.F) {
	for _, s := range waitForms() {
		f.Add(strings.ReplaceAll(s.header, "*", "Requests"), "12", "0", "X-*")
	}
	for _, s := range remoteForms() {
		f.Add(strings.ReplaceAll(s.limit, "*", "a"), "100, 100;w=60", "1", "Ratelimit")
	}
	f.Add("Ratelimit", `"a";r=0;t=8`, "", "")
	f.Add("Ratelimit", `"a\`, "\x00", "*")
	f.Add("X-Shopify-Shop-Api-Call-Limit", "99999999999999999999/1", "-1", "X-Mine*")
	f.Add("X-Ratelimit-Reset", "1e400", "0", "X-Ratelimit-Reset")
	f.Fuzz(func(t *testing.T, name, value, remaining, pattern string) {
		header := http.Header{"X-Ratelimit-Remaining": {remaining}, "Date": {remaining}, name: {value, remaining}, "Ratelimit-Policy": {value}, "X-Mine": nil}
		header.Set(name, value)
		for _, forms := range []Forms{{}, {Wait: []string{pattern}}, {Off: []string{pattern}}, {Wait: []string{name, "*"}, Off: []string{"X-*"}}} {
			for _, status := range []int{200, 400, 403, 413, 429, 503, 529, 600} {
				a := &Answer{Status: status, Header: header, At: noon()}
				r := a.Refusal(forms)
				switch {
				case r == nil && status == 429, r != nil && (status == 200 || status == 600):
					t.Errorf("%d %s: %q: %+v", status, name, value, r)
				case r == nil:
				case r.After < 0 || r.After > maxRetryAfter || r.After > 0 && !r.Named || r.Own && !r.Named || r.Unsure && r.Named || len(r.Names) > maxRemotes:
					t.Errorf("%d %s: %q: %+v", status, name, value, r)
				}
				for _, m := range a.Remotes(forms) {
					if m.Limit < -1 || m.Remaining < -1 || m.Reset < -1 || m.Reset > maxRetryAfter || !m.says() {
						t.Errorf("%s: %q: %+v", name, value, m)
					}
				}
				if list := a.Malformed(forms); !slices.IsSorted(list) {
					t.Errorf("%s: %q: malformed %q", name, value, list)
				}
			}
		}
	})
}
