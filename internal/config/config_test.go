package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callq/callq/internal/limit"
)

// paths are those of every value, with where it came from.
func paths(c *Config) map[string]string {
	all := map[string]string{}
	for _, s := range c.origin.settings {
		all[s.path] = s.from.String()
	}
	return all
}

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
  stripe: {rate: 100 per 1h, slack: 2s, hosts: [api.stripe.com, 10.0.0.1], retry_after: 10m}
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
    on: ip-a
    hours: [mon-fri 09:00-18:00, "Sat 10:00-14:00 Europe/Berlin"]
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
	wantLimits := map[string]Limit{
		"stripe": {
			Rate: Rates{"100 per 1h, sliding window"}, Algorithm: "sliding_window", Slack: 2 * time.Second, SendWithin: 5 * time.Second,
			Hosts: []string{"api.stripe.com", "10.0.0.1"}, RetryAfter: 10 * time.Minute, Windows: []limit.Window{{Rate: limit.Rate{Units: 100, Window: time.Hour}, Slack: 2 * time.Second, SendWithin: 5 * time.Second}},
		},
		"0042": {
			Rate: Rates{"5 per 1s, sliding window"}, Algorithm: "sliding_window", Anchor: "finish",
			Slack: 500 * time.Millisecond, SendWithin: 50 * time.Millisecond,
			Windows: []limit.Window{{Rate: limit.Rate{Units: 5, Window: time.Second}, Slack: 500 * time.Millisecond, SendWithin: 50 * time.Millisecond}},
		},
		"tokens": {
			Rate: Rates{"90000 per 1m, sliding window"}, Algorithm: "sliding_window", Per: "key", Count: "cost", Anchor: "finish",
			Slack: 3 * time.Second, SendWithin: 3 * time.Second,
			RetryAfter: time.Hour, Windows: []limit.Window{{Rate: limit.Rate{Units: 90_000, Window: time.Minute}, Slack: 3 * time.Second, SendWithin: 3 * time.Second}},
		},
		"sockets": {
			Algorithm: "sliding_window", Concurrency: 50, Anchor: "finish",
			Slack: 500 * time.Millisecond, SendWithin: 5 * time.Second,
			RetryAfter: time.Hour, Windows: []limit.Window{{Rate: limit.Rate{Units: 50}, Slack: 500 * time.Millisecond, SendWithin: 5 * time.Second}},
		},
	}
	payments := Queue{[]string{"stripe", "0042"}, "ip-a", 5, Backoff{time.Second, 36 * time.Hour}, 90 * time.Second, "fail", Hours{"Mon-Fri 09:00-18:00, Sat 10:00-14:00 Europe/Berlin"}}
	plain := Queue{nil, "", 3, Backoff{10 * time.Second, 15 * time.Minute}, 30 * time.Second, "retry", nil}
	fixed := plain
	fixed.Backoff = Backoff{5 * time.Second, 5 * time.Second}
	wantQueues := map[string]Queue{"default": plain, "plain": plain, "payments": payments, "refunds": payments, "fixed": fixed}
	if diff := cmp.Diff(wantLimits, c.Limits); diff != "" {
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

func TestPrecedence(t *testing.T) {
	t.Parallel()
	file := "http:\n  listen: :1\nlimits: {per-account: {rate: 1/s}}\nqueues: {a: {limits: [per-account]}}\n"
	cases := []struct {
		name, text, path string
		env, flags       map[string]string
		want, origin     string
	}{
		{"default", "", "http.listen", nil, nil, "127.0.0.1:7460", "default"},
		{"file over default", file, "http.listen", nil, nil, ":1", "config.yaml:2"},
		{"environment over file", file, "http.listen", map[string]string{"CALLQ_HTTP_LISTEN": ":2"}, nil, ":2", "CALLQ_HTTP_LISTEN"},
		{"flag over environment", file, "http.listen", map[string]string{"CALLQ_HTTP_LISTEN": ":2"}, map[string]string{"http.listen": ":3"}, ":3", "--http-listen"},
		{"an empty variable is none", file, "http.listen", map[string]string{"CALLQ_HTTP_LISTEN": ""}, nil, ":1", "config.yaml:2"},
		{"a limit's", file, "limits.per-account.rate", map[string]string{"CALLQ_LIMITS_PER_ACCOUNT_RATE": "2/s"}, nil, "[2 per 1s, sliding window]", "CALLQ_LIMITS_PER_ACCOUNT_RATE"},
		{"a limit's that the file does not give", "limits: {a: }", "limits.a.rate", map[string]string{"CALLQ_LIMITS_A_RATE": "2/s"}, nil, "[2 per 1s, sliding window]", "CALLQ_LIMITS_A_RATE"},
		{"the default queue's", "", "queues.default.timeout", map[string]string{"CALLQ_QUEUES_DEFAULT_TIMEOUT": "5s"}, nil, "5s", "CALLQ_QUEUES_DEFAULT_TIMEOUT"},
		{"a list", "worker: {labels: [c]}", "worker.labels", map[string]string{"CALLQ_WORKER_LABELS": "a, b"}, nil, "[a b]", "CALLQ_WORKER_LABELS"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := mustLoad(t, c.text, c.env, c.flags)
			if text := fmt.Sprint(got.origin.byPath[c.path].value); text != c.want {
				t.Errorf("%s = %s, want %s", c.path, text, c.want)
			}
			if got.Origin(c.path) != c.origin {
				t.Errorf("origin %q, want %q", got.Origin(c.path), c.origin)
			}
		})
	}
}

func TestConnections(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(secret, []byte("postgres://u:pw@secret/d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := `postgres: {url: "postgres://file/d"}`
	fromEnv := `postgres: {url: "${DATABASE_URL}"}`
	inFile := "postgres:\n  url_file: " + secret
	cases := []struct {
		name, text string
		env, flags map[string]string
		want       string
		origin     string
	}{
		{"the file", file, map[string]string{"DATABASE_URL": "postgres://common/d"}, nil, "postgres://file/d", "config.yaml:1"},
		{"CALLQ_POSTGRES_URL", file, map[string]string{"CALLQ_POSTGRES_URL": "postgres://env/d"}, nil, "postgres://env/d", "CALLQ_POSTGRES_URL"},
		{"the flag", file, map[string]string{"CALLQ_POSTGRES_URL": "postgres://env/d"}, map[string]string{"postgres.url": "host=flag"}, "host=flag", "--postgres-url"},
		{"DATABASE_URL by itself", "", map[string]string{"DATABASE_URL": "postgres://common/d", "PGHOST": "h"}, nil, "postgres://common/d", "DATABASE_URL"},
		{"DATABASE_URL through the file", fromEnv, map[string]string{"DATABASE_URL": "postgres://common/d"}, nil, "postgres://common/d", "config.yaml:1"},
		{"PG*, which pgx reads", fromEnv, map[string]string{"PGHOST": "h"}, nil, "", "libpq's PG*"},
		{"a secret's file", inFile, map[string]string{"DATABASE_URL": "postgres://common/d"}, nil, "postgres://u:pw@secret/d", "config.yaml:2"},
		{"a variable over a secret's file", inFile, map[string]string{"CALLQ_POSTGRES_URL": "postgres://env/d"}, nil, "postgres://env/d", "CALLQ_POSTGRES_URL"},
		{"a secret's file over the file", file, map[string]string{"CALLQ_POSTGRES_URL_FILE": secret}, nil, "postgres://u:pw@secret/d", "CALLQ_POSTGRES_URL_FILE"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := mustLoad(t, c.text, c.env, c.flags)
			if url, err := got.PostgresURL(); err != nil || url != c.want {
				t.Errorf("PostgresURL() = %q, %v, want %q", url, err, c.want)
			}
			if got.Origin("postgres.url") != c.origin {
				t.Errorf("origin %q, want %q", got.Origin("postgres.url"), c.origin)
			}
		})
	}
	none := Default()
	if _, err := none.PostgresURL(); !errors.Is(err, ErrNoPostgres) {
		t.Errorf("without Postgres: %v", err)
	}
	if _, err := none.RedisURL(); !errors.Is(err, ErrNoRedis) {
		t.Errorf("without Redis: %v", err)
	}
	for _, url := range []string{"redis://h:1/2", "rediss://u:p@h", "unix:///run/redis.sock?db=1"} {
		if got, err := mustLoad(t, "", map[string]string{"REDIS_URL": url}, nil).RedisURL(); err != nil || got != url {
			t.Errorf("RedisURL() = %q, %v, want %q", got, err, url)
		}
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "1", "EMPTY": "", "YAML": "[x, y]: #"}
	cases := []struct{ text, want, refused string }{
		{text: "plain $A $", want: "plain $A $"},
		{text: "${A}", want: "1"},
		{text: "x${A}y${A}", want: "x1y1"},
		{text: "${B:-fall back}", want: "fall back"},
		{text: "${EMPTY:-2}", want: "2"},
		{text: "${A:-2}", want: "1"},
		{text: "${B:-}", want: ""},
		{text: "x${B:-}", want: "x"},
		{text: "${B}", want: ""},
		{text: "${YAML}", want: "[x, y]: #"},
		{text: "$${A}", want: "${A}"},
		{text: "x${B}", refused: "${B} is not set"},
		{text: "${A", refused: "names no variable"},
		{text: "${}", refused: "names no variable"},
		{text: "${1A}", refused: "names no variable"},
		{text: "${A-x}", refused: "names no variable"},
		{text: "${A:-${B}}", refused: "names no variable"},
	}
	for _, c := range cases {
		got, _, err := expand(c.text, env)
		if c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) || c.refused == "" && (err != nil || got != c.want) {
			t.Errorf("expand(%q) = %q, %v, want %q, %q", c.text, got, err, c.want, c.refused)
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

func TestWarnings(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "", map[string]string{
		"CALLQ_HTTP_LITSEN": ":1", "CALLQ_LIMITS_STRIPE_RATE": "1/s", "CALLQ_REDIS_PORT": "tcp://10.0.0.1:6379",
		"CALLQ_SERVICE_HOST": "10.0.0.1", "CALLQ_CONFIG": "x", "HTTP_LITSEN": "1", "CALLQ_LOG_LEVEL": "warn",
	}, nil)
	want := []string{
		"CALLQ_HTTP_LITSEN is not a setting (did you mean CALLQ_HTTP_LISTEN?)",
		"CALLQ_LIMITS_STRIPE_RATE is of a limit, queue or budget that the file does not have",
	}
	if diff := cmp.Diff(want, c.Warnings()); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestDidYouMean(t *testing.T) {
	t.Parallel()
	known := []string{"rate", "slack", "send_within", "max_attempts"}
	cases := []struct{ word, want string }{
		{"raet", " (did you mean rate?)"},
		{"rates", " (did you mean rate?)"},
		{"Rate", " (did you mean rate?)"},
		{"max_attempt", " (did you mean max_attempts?)"},
		{"sendwithin", " (did you mean send_within?)"},
		{"quota", ""},
		{"per", ""},
		{"s", ""},
		{"", ""},
	}
	for _, c := range cases {
		if got := didYouMean(c.word, known); got != c.want {
			t.Errorf("didYouMean(%q) = %q, want %q", c.word, got, c.want)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	cases := []struct{ url, want string }{
		{"postgres://u:hunter2@h:5432/d?sslmode=require", "postgres://u:xxxxx@h:5432/d?sslmode=require"},
		{"postgres://h/d?user=u&password=hunter2", "postgres://h/d?user=u&password=xxxxx"},
		{"host=h user=u password=hunter2 dbname=d", "host=h user=u password=xxxxx dbname=d"},
		{"host=h password = 'hun ter2' dbname=d", "host=h password = xxxxx dbname=d"},
		{`host=h password=hun\ ter2 dbname=d`, "host=h password=xxxxx dbname=d"},
		{"postgres://u:hun/ter2@h/d", "postgres://u:xxxxx@h/d"},
		{"postgres://u:hunt@er2@h/d", "postgres://u:xxxxx@h/d"},
		{"redis://:hunter2@h:6379/0", "redis://:xxxxx@h:6379/0"},
		{"unix:///run/redis.sock", "unix:///run/redis.sock"},
		{"", ""},
	}
	for _, c := range cases {
		if got := redact(c.url, ""); got != c.want {
			t.Errorf("Redact(%q) = %q, want %q", c.url, got, c.want)
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
	want := "config.yaml:3: http_task.secrets.A.env: the variable that it names is not set\n" +
		"config.yaml:4: http_task.secrets.B.file: cannot be read: it is empty\n" +
		"config.yaml:5: http_task.secrets.C.file: cannot be read: no such file or directory"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
