package config

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A file with all there is of limits, budgets, queues and workers means what it says.
func TestFileOfEverything(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
postgres: {url: "${DATABASE_URL}"}
redis:    {url: "${REDIS_URL}"}
http:     {listen: 127.0.0.1:7460}
log:      {level: info, format: text}

limits:
  stripe:      {rate: 100/1h}
  per-account: {rate: 5/s, per: key, overrides: {acct_1: 50/s}}
  gpt-rpm:     {rate: 500/1m}
  gpt-tokens:  {rate: 90_000/1m, count: cost}
  bursty:      {rate: 10/s, algorithm: token_bucket, burst: 100}
  nightly:     {rate: 10_000/1d, algorithm: fixed_window, timezone: America/New_York}
  cps:         {rate: 10/s, algorithm: leaky_bucket}
  two-speeds:  {rate: [10/s, 10_000/d]}
  sockets:     {concurrency: 50}
  per-phone:   {concurrency: 1, per: key}

budgets:
  search-api:  {rate: 100/s, burst: 100, on_outage: open}

queues:
  default:  {}
  payments: {limits: [stripe, per-account], max_attempts: 5, backoff: 10s..15m,
             timeout: 30s, on_lost: fail}
  research: {limits: [gpt-rpm, gpt-tokens, sockets], hours: "Mon-Fri 09:00-18:00 Europe/Berlin"}
  egress-a: {limits: [stripe], on: ip-a}

schedule:  {dispatch: "@every 1s", retention: "0 4 * * *", vacuum: "30 4 * * 0"}
retention: {done: 7d, failed: 30d, cancelled: 1d}
worker:    {concurrency: 100, labels: [], shutdown_timeout: 60s}
http_task:
  hosts: []
  private_hosts: []
  store: errors
  secrets: {STRIPE_KEY: {env: STRIPE_KEY, hosts: [api.stripe.com]}}
`, map[string]string{"DATABASE_URL": "postgres://h/d", "REDIS_URL": "redis://h", "STRIPE_KEY": "k"}, nil)
	got := map[string][]string{}
	for name, l := range c.Limits {
		for _, w := range l.Windows {
			got[name] = append(got[name], w.Rate.String())
		}
	}
	if diff := cmp.Diff(map[string][]string{
		"stripe": {"100 per 1h, sliding window"}, "per-account": {"5 per 1s, sliding window"}, "gpt-rpm": {"500 per 1m, sliding window"},
		"gpt-tokens": {"90000 per 1m, sliding window"}, "bursty": {"10 per 1s, token bucket, burst 100"},
		"nightly": {"10000 per 1d, fixed window, America/New_York"}, "cps": {"1 per 100ms, leaky bucket"},
		"two-speeds": {"10 per 1s, sliding window", "10000 per 1d, sliding window"}, "sockets": {"50 at once"}, "per-phone": {"1 at once"},
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
