package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func mustLoad(t *testing.T, text string, env, flags map[string]string) *Config {
	t.Helper()
	c, err := load("config.yaml", []byte(text), env, flags)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestValuesAreRead(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
limits:
  stripe: {rate: 100 per 1h, slack: 2s, hosts: [api.stripe.com, 10.0.0.1], retry_after: 10m, headers: {wait: [x-my-reset, X-Mine-*], off: [x-ratelimit-reset]}, trust: ignore}
  0042: {rate: 5/s, anchor: finish, algorithm: sliding_window, send_within: 50ms, retry_after: off}
  tokens: {rate: 90_000/1m, per: key, count: cost, anchor: finish}
  sockets: {concurrency: 50}
queues:
  payments: &payments
    limits: [stripe, 0042]
    max_attempts: 5
    backoff: 1s..1d12h
    timeout: 1m30s
    on_lost: fail
    store: all
    store_max: 16KiB
    store_for: 1d
    on_refused: retry
    max_refusals: 7
    max_waiting: 10_000
    max_waiting_per_key: 100
    when_full: discard_oldest
    on: ip-a
    hours: Mon-Fri 09:00-18:00, Sat 10:00-14:00 Europe/Berlin
  refunds: *payments
  plain:
  fixed: {backoff: 5s}
retention: {done: 2w}
worker: {labels: [ip-a, eu]}
http_task: {private_hosts: [127.0.0.1, 10.0.0.0/8, "::1", api.internal], allow_private: true, secrets: {
  STRIPE_KEY: {env: STRIPE_KEY, hosts: [api.stripe.com, "http://[::1]:80"]}, other: {file: /run/secrets/other, hosts: ["api.example:8443"]}}}
http: {listen: off}
calls: {max_data: 1MiB}
schedule: {retention: "TZ=Europe/Berlin 0 4 29 2 *", vacuum: "@daily"}
`, nil, nil)
	limits := map[string]Limit{} // what their windows are, TestWindows has
	for name, l := range c.Limits {
		l.Windows, l.Rate, l.Slack, l.SendWithin = nil, nil, 0, 0
		limits[name] = l
	}
	wantLimits := map[string]Limit{
		"stripe":  {Algorithm: "sliding_window", Hosts: []string{"api.stripe.com", "10.0.0.1"}, RetryAfter: 10 * time.Minute, Headers: Headers{Wait: []string{"x-my-reset", "X-Mine-*"}, Off: []string{"x-ratelimit-reset"}}, Trust: "ignore"},
		"0042":    {Algorithm: "sliding_window", Anchor: "finish", Trust: "lower"},
		"tokens":  {Algorithm: "sliding_window", Per: "key", Count: "cost", Anchor: "finish", RetryAfter: time.Hour, Trust: "lower"},
		"sockets": {Algorithm: "sliding_window", Concurrency: 50, RetryAfter: time.Hour, Trust: "lower"},
	}
	payments := Queue{[]string{"stripe", "0042"}, "ip-a", 5, Backoff{time.Second, 36 * time.Hour}, 90 * time.Second, "fail", "Mon-Fri 09:00-18:00, Sat 10:00-14:00 Europe/Berlin", "all", 16 << 10, 24 * time.Hour, nil, "retry", 7, 10_000, 100, "discard_oldest"}
	plain := Queue{nil, "", 3, Backoff{10 * time.Second, 15 * time.Minute}, 30 * time.Second, "retry", "", "", 64 << 10, 0, nil, "close", 1000, 0, 0, "refuse"}
	fixed := plain
	fixed.Backoff = Backoff{5 * time.Second, 5 * time.Second}
	wantQueues := map[string]Queue{"default": plain, "plain": plain, "payments": payments, "refunds": payments, "fixed": fixed}
	if diff := cmp.Diff(wantLimits, limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantQueues, c.Queues); diff != "" {
		t.Errorf("queues (-want +got):\n%s", diff)
	}
	wantTask := HTTPTask{
		PrivateHosts: []string{"127.0.0.1", "10.0.0.0/8", "::1", "api.internal"}, AllowPrivate: true, Store: "errors",
		Secrets: map[string]Secret{
			"STRIPE_KEY": {Env: "STRIPE_KEY", Hosts: []string{"api.stripe.com", "http://[::1]:80"}},
			"other":      {File: "/run/secrets/other", Hosts: []string{"api.example:8443"}},
		},
	}
	if diff := cmp.Diff(wantTask, c.HTTPTask); diff != "" {
		t.Errorf("http_task (-want +got):\n%s", diff)
	}
	if c.HTTP.Listen != "off" || c.Calls.MaxData != 1<<20 || c.Retention.Done != 14*24*time.Hour || !slices.Equal(c.Worker.Labels, []string{"ip-a", "eu"}) {
		t.Errorf("got %+v %+v %+v %+v", c.HTTP, c.Calls, c.Retention, c.Worker)
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
  tolerant:    {rate: 100/s, algorithm: leaky_bucket, tolerance: 59ms}
  written:     {rate: "1 per 10ms, leaky bucket, tolerance 50ms", algorithm: leaky_bucket}
  even:        {rate: 100/s, spread: true, tolerance: 50ms, per: key}
  even-days:   {rate: 6/d, algorithm: fixed_window, timezone: Europe/Berlin, spread: true}
  even-months: {rate: 31/mo, algorithm: fixed_window, spread: true}
  at-once:     {rate: 100/s, spread: false}
  estimated:   {rate: 100/s, algorithm: sliding_window_counter, per: key}
  two-speeds:  {rate: [10_000/d, 10/s], send_within: 50ms}
  per-phone:   {concurrency: 1, per: key, overrides: {hotline: 9}}
`, map[string]string{
		"CALLQ_LIMITS_STRIPE_RATE": "7 per 1h, sliding window,8/d", "CALLQ_LIMITS_BURSTY_BURST": "90", "CALLQ_LIMITS_NIGHTLY_TIMEZONE": "Asia/Tokyo",
		"CALLQ_LIMITS_MONTHLY_OVERRIDES": "big=60/mo, small = 1/mo",
	}, nil)
	type window struct {
		name, rate string
		own        map[string]int64
	}
	for name, want := range map[string][]window{
		"stripe": {
			{"", "7 per 1h, sliding window", nil},
			{"/1d", "8 per 1d, sliding window", nil},
		},
		"slow":        {{"", "100 per 1h, sliding window", nil}},
		"per-account": {{"", "5 per 1s, sliding window", map[string]int64{"acct_1": 50, "": 1, "odd, 'key'": 6}}},
		"bursty":      {{"", "10 per 1s, token bucket, burst 90", nil}},
		"nightly":     {{"", "10000 per 1d, fixed window, Asia/Tokyo", nil}},
		"monthly":     {{"", "5 per 1mo, fixed window, UTC", map[string]int64{"big": 60, "small": 1}}},
		"cps":         {{"", "1 per 100ms, leaky bucket", nil}},
		"tolerant":    {{"", "1 per 10ms, leaky bucket, tolerance 59ms", nil}},
		"written":     {{"", "1 per 10ms, leaky bucket, tolerance 50ms", nil}},
		"even":        {{"", "1 per 10ms, leaky bucket, tolerance 50ms", nil}},
		"even-days":   {{"", "1 per 270m, leaky bucket, Europe/Berlin", nil}},
		"even-months": {{"", "1 per 1d, leaky bucket, UTC", nil}},
		"estimated":   {{"", "100 per 1s, sliding window counter", nil}},
		"at-once":     {{"", "100 per 1s, sliding window", nil}},
		"two-speeds": {
			{"", "10 per 1s, sliding window", nil},
			{"/1d", "10000 per 1d, sliding window", nil},
		},
		"per-phone": {{"", "1 at once", map[string]int64{"hotline": 9}}},
	} {
		var got []window
		for _, w := range c.Limits[name].Windows {
			got = append(got, window{w.Suffix, w.Rate.String(), w.Overrides})
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(window{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
budgets:
  search:  {rate: 100/s, burst: 20, on_outage: open}
  keys:    {rate: 5/s, per: key, overrides: {acct_1: 50/s}}
  window:  {rate: 500 per 1m, algorithm: sliding_window}
  monthly: {rate: 5/mo, algorithm: fixed_window, timezone: Asia/Tokyo, per: key, overrides: {big: 50/1mo}}
  cps:     {rate: 10/s, algorithm: leaky_bucket}
queues: {agents: {needs: {window: 3, keys: 1}}}
`, map[string]string{"CALLQ_QUEUES_AGENTS_NEEDS": "window=4,keys=1"}, nil)
	got := map[string]string{}
	for name, b := range c.Budgets {
		got[name] = b.Rule.String()
	}
	want := map[string]string{
		"search":  "100 per 1s, burst 20",
		"keys":    "5 per 1s, burst 1, per key, acct_1 50",
		"window":  "500 per 1m, sliding window",
		"monthly": "5 per 1mo, fixed window, Asia/Tokyo, per key, big 50",
		"cps":     "1 per 100ms, leaky bucket",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("budgets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Needs{"window": "4", "keys": "1"}, c.Queues["agents"].Needs); diff != "" {
		t.Errorf("needs (-want +got):\n%s", diff)
	}
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(secret, []byte("postgres://u:pw@secret/d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type vars = map[string]string
	file := "http:\n  listen: localhost:1\nlimits: {per-account: {rate: 1/s}}\nqueues: {a: {limits: [per-account]}}\n"
	inFile := `postgres: {url: "postgres://file/d"}`
	fromEnv := `postgres: {url: "${DATABASE_URL}"}`
	secretIn := "postgres:\n  url_file: " + secret
	for name, c := range map[string]struct {
		text, path   string
		env, flags   vars
		want, origin string
	}{
		"default":                         {"", "http.listen", nil, nil, "127.0.0.1:7460", "default"},
		"file over default":               {file, "http.listen", nil, nil, "localhost:1", "config.yaml:2:11"},
		"environment over file":           {file, "http.listen", vars{"CALLQ_HTTP_LISTEN": "localhost:2"}, nil, "localhost:2", "CALLQ_HTTP_LISTEN"},
		"flag over environment":           {file, "http.listen", vars{"CALLQ_HTTP_LISTEN": "localhost:2"}, vars{"http.listen": "localhost:3"}, "localhost:3", "--http-listen"},
		"an empty variable is none":       {file, "http.listen", vars{"CALLQ_HTTP_LISTEN": ""}, nil, "localhost:1", "config.yaml:2:11"},
		"a limit's":                       {file, "limits.per-account.slack", vars{"CALLQ_LIMITS_PER_ACCOUNT_SLACK": "2s"}, nil, "2s", "CALLQ_LIMITS_PER_ACCOUNT_SLACK"},
		"a rate the file does not give":   {"limits: {a: }", "limits.a.rate", vars{"CALLQ_LIMITS_A_RATE": "2/s"}, nil, "[2 per 1s, sliding window]", "CALLQ_LIMITS_A_RATE"},
		"the default queue's":             {"", "queues.default.timeout", vars{"CALLQ_QUEUES_DEFAULT_TIMEOUT": "5s"}, nil, "5s", "CALLQ_QUEUES_DEFAULT_TIMEOUT"},
		"a list":                          {"worker: {labels: [c]}", "worker.labels", vars{"CALLQ_WORKER_LABELS": "a, b"}, nil, "[a b]", "CALLQ_WORKER_LABELS"},
		"a list of one":                   {"worker: {labels: c}", "worker.labels", nil, nil, "[c]", "config.yaml:1:18"},
		"the file over DATABASE_URL":      {inFile, "postgres.url", vars{"DATABASE_URL": "postgres://common/d"}, nil, "postgres://file/d", "config.yaml:1:17"},
		"CALLQ_POSTGRES_URL":              {inFile, "postgres.url", vars{"CALLQ_POSTGRES_URL": "postgres://env/d"}, nil, "postgres://env/d", "CALLQ_POSTGRES_URL"},
		"the flag":                        {inFile, "postgres.url", vars{"CALLQ_POSTGRES_URL": "postgres://env/d"}, vars{"postgres.url": "host=flag"}, "host=flag", "--postgres-url"},
		"DATABASE_URL over PG*":           {"", "postgres.url", vars{"DATABASE_URL": "postgres://common/d", "PGHOST": "h"}, nil, "postgres://common/d", "DATABASE_URL"},
		"DATABASE_URL through the file":   {fromEnv, "postgres.url", vars{"DATABASE_URL": "postgres://common/d"}, nil, "postgres://common/d", "config.yaml:1:17"},
		"PG*, which pgx reads":            {fromEnv, "postgres.url", vars{"PGHOST": "h"}, nil, "", "libpq's PG*"},
		"a secret's file":                 {secretIn, "postgres.url", vars{"DATABASE_URL": "postgres://common/d"}, nil, "postgres://u:pw@secret/d", "config.yaml:2:13"},
		"a variable over a secret's file": {secretIn, "postgres.url", vars{"CALLQ_POSTGRES_URL": "postgres://env/d"}, nil, "postgres://env/d", "CALLQ_POSTGRES_URL"},
		"a secret's file over the file":   {inFile, "postgres.url", vars{"CALLQ_POSTGRES_URL_FILE": secret}, nil, "postgres://u:pw@secret/d", "CALLQ_POSTGRES_URL_FILE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := mustLoad(t, c.text, c.env, c.flags)
			if text := fmt.Sprint(got.origin.byPath[c.path].value); text != c.want || got.Origin(c.path) != c.origin {
				t.Errorf("%s = %s from %s, want %s from %s", c.path, text, got.Origin(c.path), c.want, c.origin)
			}
			if url, err := got.PostgresURL(); c.path == "postgres.url" && (err != nil || url != c.want) {
				t.Errorf("PostgresURL() = %q, %v, want %q", url, err, c.want)
			}
		})
	}
	if _, err := Default().PostgresURL(); err == nil || !strings.HasPrefix(err.Error(), "callq: no Postgres is configured: set postgres.url in") {
		t.Errorf("without Postgres: %v", err)
	}
	if _, err := Default().RedisURL(); err == nil || !strings.HasPrefix(err.Error(), "callq: no Redis is configured: set redis.url in") {
		t.Errorf("without Redis: %v", err)
	}
	for _, url := range []string{"redis://h:1/2", "rediss://u:p@h", "unix:///run/redis.sock?db=1"} {
		if got, err := mustLoad(t, "", vars{"REDIS_URL": url}, nil).RedisURL(); err != nil || got != url {
			t.Errorf("RedisURL() = %q, %v, want %q", got, err, url)
		}
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	values := map[string]string{"A": "1", "EMPTY": "", "YAML": "[x, y]: #"}
	env := func(name string) string { return values[name] }
	for text, want := range map[string]string{
		"plain $A $": "plain $A $", "${A}": "1", "x${A}y${A}": "x1y1", "${B:-fall back}": "fall back", "${EMPTY:-2}": "2", "${A:-2}": "1",
		"${B:-}": "", "x${B:-}": "x", "${B}": "", "${YAML}": "[x, y]: #", "$${A}": "${A}",
	} {
		if got, err := expand(text, env); err != nil || got != want {
			t.Errorf("expand(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"x${B}": "${B} is not set", "${A": "names no variable", "${}": "names no variable", "${1A}": "names no variable",
		"${A-x}": "names no variable", "${A:-${B}}": "names no variable",
	} {
		if got, err := expand(text, env); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expand(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestExpansionIsOfValuesOnly(t *testing.T) {
	t.Parallel()
	env := map[string]string{"RATE": "7/s", "NAME": "stripe", "LABEL": "a, b]"}
	c := mustLoad(t, "limits: {stripe: {rate: \"${RATE}\"}}\nqueues: {q: {limits: [\"${NAME}\"]}, \"${NAME}\": {}}\n", env, nil)
	if c.Limits["stripe"].Windows[0].Rate.Units != 7 || !slices.Equal(c.Queues["q"].Limits, []string{"stripe"}) {
		t.Errorf("got %+v, %+v", c.Limits, c.Queues)
	}
	if _, ok := c.Queues["${NAME}"]; !ok {
		t.Error("a key was expanded")
	}
	if _, err := load("config.yaml", []byte("worker: {labels: [\"${LABEL}\"]}"), env, nil); err == nil {
		t.Error("what a variable holds was read as YAML")
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:hunter2@h:5432/d?sslmode=require": "postgres://u:xxxxx@h:5432/d?sslmode=require",
		"postgres://h/d?user=u&password=hunter2":        "postgres://h/d?user=u&password=xxxxx",
		"host=h user=u password=hunter2 dbname=d":       "host=h user=u password=xxxxx dbname=d",
		"host=h password = 'hun ter2' dbname=d":         "host=h password = xxxxx dbname=d",
		`host=h password=hun\ ter2 dbname=d`:            "host=h password=xxxxx dbname=d",
		"postgres://u:hun/ter2@h/d":                     "postgres://u:xxxxx@h/d",
		"postgres://u:hunt@er2@h/d":                     "postgres://u:xxxxx@h/d",
		"redis://:hunter2@h:6379/0":                     "redis://:xxxxx@h:6379/0",
		"unix:///run/redis.sock":                        "unix:///run/redis.sock",
		"":                                              "",
	} {
		if got := redact(url, ""); got != want {
			t.Errorf("redact(%q) = %q, want %q", url, got, want)
		}
	}
}

func TestSecretValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"full": "hunter2\n", "empty": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := mustLoad(t, "http_task: {secrets: {A: {env: A_KEY, hosts: [x]}, B: {file: "+dir+"/full, hosts: [x]}}}",
		map[string]string{"A_KEY": " hunter3 "}, nil)
	got, err := c.SecretValues()
	if diff := cmp.Diff(map[string]string{"A": "hunter3", "B": "hunter2"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	// Without them the file is still good, for whoever sends nothing.
	c = mustLoad(t, "http_task:\n  secrets:\n    A: {env: hunter2, hosts: [x]}\n    B: {file: "+dir+"/empty, hosts: [x]}\n    C: {file: "+dir+"/none, hosts: [x]}\n", nil, nil)
	_, err = c.SecretValues()
	want := "config.yaml:3:14: http_task.secrets.A.env: the variable that it names is not set\n" +
		"config.yaml:4:15: http_task.secrets.B.file: cannot be read: it is empty\n" +
		"config.yaml:5:15: http_task.secrets.C.file: cannot be read: no such file or directory"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// The parts of a limit's shares, with what is left for the rest.
func TestShares(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
limits:
  llm: {rate: 100/s, shares: {chat: 30%, retries: 20%, rest: 50%}}
  all: {rate: 100/s, shares: {chat: 30%, "priority 0-2": 12.5%}}
  named: {concurrency: 9, shares: {chat: 30%, import: 70%}}
queues:
  chat: {limits: [llm, all, named]}
  import: {limits: [llm, all, named]}
`, nil, nil)
	for name, want := range map[string]string{
		"llm": "chat 30%, rest 50%, retries 20%", "all": "chat 30%, priority 0-2 12.5%, rest 57.5%", "named": "chat 30%, import 70%",
	} {
		if got := c.Limits[name].Parts.String(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	env := map[string]string{"CALLQ_LIMITS_LLM_SHARES": "chat=10%,rest=90%"}
	c = mustLoad(t, "limits: {llm: {rate: 1/s}}\nqueues: {chat: {limits: [llm]}}", env, nil)
	if got, want := c.Limits["llm"].Parts.String(), "chat 10%, rest 90%"; got != want {
		t.Errorf("from the environment: %s, want %s", got, want)
	}
}

// Who may come in is read, what makes no sense is refused, and callq does not listen where everybody could read.
func TestAuth(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `http:
  listen: :7460
  auth:
    users: /etc/users
    tokens: {CI: {env: CI_TOKEN, role: operator}, other: {file: /run/other}}
    proxy: {from: [10.0.0.0/8, "::1"], header: X-User, roles: {alice: admin}}
`, map[string]string{"CI_TOKEN": "secret"}, nil)
	want := Auth{
		Users: "/etc/users", Tokens: map[string]Token{"CI": {Env: "CI_TOKEN", Role: "operator"}, "other": {File: "/run/other", Role: "viewer"}},
		Proxy: Proxy{From: []string{"10.0.0.0/8", "::1"}, Header: "X-User", Roles: Roles{"alice": "admin"}},
	}
	if !reflect.DeepEqual(c.HTTP.Auth, want) {
		t.Errorf("%+v", c.HTTP.Auth)
	}
	if _, err := c.TokenValues(); err == nil || !strings.Contains(err.Error(), "http.auth.tokens.other.file") || strings.Contains(err.Error(), "CI") {
		t.Errorf("a token that is missing: %v", err)
	}
	for text, want := range map[string]string{
		"http: {listen: 0.0.0.0:1}":                                     "nobody has to log in",
		"http: {listen: \":1\"}":                                        "nobody has to log in",
		`http: {listen: "[::]:1"}`:                                      "nobody has to log in",
		"http: {listen: 10.0.0.1:1}":                                    "nobody has to log in",
		"http: {auth: {tokens: {a: {}}}}":                               "has no env and no file",
		"http: {auth: {tokens: {a: {env: A, file: b}}}}":                "is given beside env",
		"http: {auth: {tokens: {a: {env: A, role: root}}}}":             "viewer|operator|admin",
		"http: {auth: {proxy: {from: [example.com]}}}":                  "is not a network",
		"http: {auth: {proxy: {from: [\"::1\"], roles: {alice: god}}}}": "is no role",
		"http: {auth: {proxy: {from: [\"::1\"], header: \"X User\"}}}":  "is not a header's name",
	} {
		if _, err := load("config.yaml", []byte(text), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{
		"http: {listen: \":1\", pages: false}", "http: {listen: 127.0.0.1:1}", `http: {listen: "[::1]:1"}`, "http: {listen: localhost:1}", "http: {listen: off}",
		"http: {listen: \":1\", auth: {users: u}}", "http: {listen: \":1\", auth: {tokens: {a: {env: A}}}}", "http: {listen: \":1\", auth: {proxy: {from: [\"::1\"]}}}",
	} {
		mustLoad(t, text, nil, nil)
	}
}
