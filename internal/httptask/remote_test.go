package httptask

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What answers say of the API's own limits: as name/limit/remaining/reset, - for what is not known.
func TestRemotes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, off, header, want string }{
		{"nothing", "", "Retry-After: 5 | X-RateLimit-Bucket: abcd | X-RateLimit-Scope: user | X-RateLimit-Resource: core", ""},
		{"GitHub", "", "x-ratelimit-limit: 5000 | x-ratelimit-remaining: 4999 | x-ratelimit-reset: 1772366460 | x-ratelimit-used: 1", "/5000/4999/1m0s"},
		{"fastify", "", "x-ratelimit-limit: 100 | x-ratelimit-remaining: 99 | x-ratelimit-reset: 1", "/100/99/1s"},
		{"Discord", "", "X-RateLimit-Limit: 5 | X-RateLimit-Remaining: 4 | X-RateLimit-Reset: 1772366460 | X-RateLimit-Reset-After: 0.25", "/5/4/250ms"},
		{"only after", "", "X-RateLimit-Reset-After: 0.25", "/-/-/250ms"},
		{"after cannot be read", "", "X-RateLimit-Reset: 60 | X-RateLimit-Reset-After: x", "/-/-/1m0s"},
		{"Envoy", "", "x-ratelimit-limit: 10, 10;w=1 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 1", "/10/0/1s"},
		{"X", "", "x-rate-limit-limit: 900 | x-rate-limit-remaining: 899 | x-rate-limit-reset: 1772367300", "/900/899/15m0s"},
		{"draft 6", "", "RateLimit-Policy: 100;w=60 | RateLimit-Limit: 100, 100;w=60 | RateLimit-Remaining: 50 | RateLimit-Reset: 5", "/100/50/5s"},
		{"GitLab", "", "RateLimit-Limit: 600 | RateLimit-Observed: 6 | RateLimit-Remaining: 594 | RateLimit-Reset: 1772366460", "/600/594/1m0s"},
		{"draft 7", "", "RateLimit-Policy: 100;w=60 | RateLimit: limit=100, remaining=50, reset=5", "/100/50/5s"},
		{"draft 8", "", `RateLimit: "p";r=50;t=8 | RateLimit-Policy: "p";q=100;w=60`, "p/100/50/8s"},
		{"draft 8, several", "", `RateLimit: "Day";t=3600;r=90, "burst";r=5 | RateLimit-Policy: "burst";q=10;w=1, "Day";w=86400;q=1000`, "day/1000/90/1h0m0s burst/10/5/-"},
		{"draft 8 in two headers", "", `RateLimit: "a";r=1 | RateLimit: "b";r=2 | RateLimit-Policy: "a";q=3 | RateLimit-Policy: "b";q=4`, "a/3/1/- b/4/2/-"},
		{"draft 8 with another policy", "", `RateLimit: "p";r=50;t=8 | RateLimit-Policy: "other";q=100;w=60`, "p/-/50/8s"},
		{"draft 8 with its limit in both", "", `RateLimit: "p";r=50;q=60 | RateLimit-Policy: "p";q=100;w=60`, "p/60/50/-"},
		{"draft 8 with names that none would have", "", `RateLimit: "` + strings.Repeat("x", 101) + `";r=50 | RateLimit-Policy: "` + strings.Repeat("y", 101) + `";q=100`, "/-/50/-"},
		{"draft 8, the policy alone", "", `RateLimit-Policy: "p";q=100;w=60`, ""},
		{"draft 8 with quotes that hold its marks", "", `RateLimit: "a,b;r=9";t=8;r=0 | RateLimit-Policy: "a,b;r=9";pk=:cTE9MQ==:;q=7`, "a,b;r=9/7/0/8s"},
		{"OpenAI", "", "x-ratelimit-limit-tokens: 150000 | x-ratelimit-remaining-tokens: 149984 | x-ratelimit-reset-tokens: 6m0s | " +
			"x-ratelimit-limit-requests: 60 | x-ratelimit-remaining-requests: 59 | x-ratelimit-reset-requests: 120ms", "requests/60/59/120ms tokens/150000/149984/6m0s"},
		{"Nest's names", "", "X-RateLimit-Limit-short: 3 | X-RateLimit-Remaining-short: 2 | X-RateLimit-Reset-short: 1 | X-RateLimit-Limit-Long: 20", "long/20/-/- short/3/2/1s"},
		{"Anthropic", "", "anthropic-ratelimit-requests-limit: 50 | anthropic-ratelimit-requests-remaining: 49 | anthropic-ratelimit-requests-reset: 2026-03-01T12:00:09Z | " +
			"anthropic-ratelimit-input-tokens-remaining: 0", "input-tokens/-/0/- requests/50/49/9s"},
		{"Shopify", "", "X-Shopify-Shop-Api-Call-Limit: 12/40", "/40/28/-"},
		{"Shopify, full", "", "X-Shopify-Shop-Api-Call-Limit: 41/40", "/40/0/-"},
		{"Shopify, unreadable", "", "X-Shopify-Shop-Api-Call-Limit: 40", ""},
		{
			"several forms", "", `X-Shopify-Shop-Api-Call-Limit: 1/2 | RateLimit: "p";r=3 | x-ratelimit-remaining-a: 4 | RateLimit-Remaining: 5 | x-rate-limit-remaining: 6 | x-ratelimit-remaining: 7`,
			"/-/7/- /-/6/- /-/5/- a/-/4/- p/-/3/- /2/1/-",
		},
		{"by the server's clock", "", "Date: Sun, 01 Mar 2026 12:00:20 GMT | x-ratelimit-remaining: 1 | x-ratelimit-reset: 1772366460", "/-/1/40s"},
		{"a reset that is over", "", "x-ratelimit-remaining: 1 | x-ratelimit-reset: 1772366000", "/-/1/0s"},
		{"a negative duration", "", "x-ratelimit-remaining: 1 | x-ratelimit-reset: -5s", "/-/1/-"},

		{"numbers that are none", "", "x-ratelimit-limit: many | x-ratelimit-remaining: NaN | x-ratelimit-reset: soon", ""},
		{"numbers that no limit has", "", "x-ratelimit-limit: 99999999999999999999 | x-ratelimit-remaining: -1 | x-ratelimit-reset: 60", "/-/-/1m0s"},
		{"huge numbers", "", `RateLimit: "p";r=` + strings.Repeat("9", 400) + ";t=" + strings.Repeat("9", 400), "p/-/-/24h0m0s"},
		{"with decimals", "", "x-ratelimit-limit: 100.0 | x-ratelimit-remaining: 0.9", "/100/0/-"},
		{"a huge name", "", "x-ratelimit-remaining-" + strings.Repeat("x", 1000) + ": 5", "/-/5/-"},

		{"off", "X-Ratelimit-Reset Ratelimit", `x-ratelimit-remaining: 7 | x-ratelimit-reset: 5 | RateLimit: "p";r=3`, "/-/7/-"},
		{"off, with *", "X-Ratelimit-* X-Shopify-*", "x-ratelimit-remaining: 7 | x-ratelimit-reset-after: 5 | x-ratelimit-limit-a: 5 | X-Shopify-Shop-Api-Call-Limit: 1/2 | RateLimit-Remaining: 1", "/-/1/-"},
	} {
		for _, status := range []int{200, 204, 404, 429} {
			if got := remotesShown(answerOf(status, c.header).Remotes(Forms{Off: strings.Fields(c.off)})); got != c.want {
				t.Errorf("%d %s: %q, want %q", status, c.name, got, c.want)
			}
		}
	}
}

func remotesShown(list []Remote) string {
	var parts []string
	for _, r := range list {
		text := []string{r.Name, fmt.Sprint(r.Limit), fmt.Sprint(r.Remaining), r.Reset.String()}
		for i, unknown := range []bool{false, r.Limit == -1, r.Remaining == -1, r.Reset == -1} {
			if unknown {
				text[i] = "-"
			}
		}
		parts = append(parts, strings.Join(text, "/"))
	}
	return strings.Join(parts, " ")
}

// A hostile answer speaks of no more limits than anyone has to keep.
func TestRemotesAreBounded(t *testing.T) {
	t.Parallel()
	header := http.Header{}
	for i := range 1000 {
		header.Add("Ratelimit", fmt.Sprintf(`"%d";r=0;t=5`, i))
		header[fmt.Sprintf("X-Ratelimit-Reset-%d", i)] = []string{"5"}
	}
	a := &Answer{Status: http.StatusTooManyRequests, Header: header, At: time.Now()}
	if n := len(a.Remotes(Forms{})); n != maxRemotes {
		t.Errorf("%d limits", n)
	}
	for _, off := range []string{"Ratelimit", "X-Ratelimit-*"} {
		if r := a.Refusal(Forms{Off: []string{off}}); r.After != 5*time.Second || len(r.Names) != maxRemotes {
			t.Errorf("without %s: %s with %d names", off, r.After, len(r.Names))
		}
	}
}
