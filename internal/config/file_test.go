package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/callq/callq/internal/limit"
)

const documented = "../../config.yaml"

func TestDocumentedFileSaysTheDefaults(t *testing.T) {
	t.Parallel()
	got, err := Load(Source{Path: documented})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), got, cmpopts.IgnoreUnexported(Config{}), cmpopts.IgnoreFields(Config{}, "File")); diff != "" {
		t.Errorf("config.yaml differs from the defaults (-default +file):\n%s", diff)
	}
	if got.Origin("queues.default.timeout") == "default" {
		t.Error("config.yaml leaves queues.default.timeout out")
	}
}

// Uncommented, the file holds every key there is, and nothing that is refused.
func TestDocumentedFileHasEveryKey(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(documented)
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^( *)#(\S)`).ReplaceAllString(string(text), "$1$2")
	for _, file := range []string{"url_file", "direct_url_file", "sentinel_password_file", "budgets_url_file"} { // not beside the URL itself
		all = regexp.MustCompile(`(?m)^ +`+file+`:.*`).ReplaceAllString(all, "")
	}
	c, err := load("config.yaml", []byte(all), map[string]string{"DATABASE_URL": "postgres://h/d", "REDIS_URL": "redis://h", "REDIS_SENTINEL_PASSWORD": "p"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.origin.settings {
		path := s.path
		elsewhere := regexp.MustCompile(`^limits\.(stripe\.(concurrency|burst|timezone|spread|tolerance)$|sockets|nightly|bursty|even)`).MatchString(path) || // kinds of limit
			regexp.MustCompile(`^budgets\.(search-api\.timezone$|per-day)`).MatchString(path) ||
			regexp.MustCompile(`^routes\[0\]\.discard$|^routes\[1\]\.`).MatchString(path) || // kinds of rule
			path == "http.auth.tokens.CI.file" || path == "http.auth.tokens.deploy.env" ||
			path == "http_task.secrets.STRIPE_KEY.file" || path == "http_task.secrets.OTHER_KEY.env" // and of secret
		if c.Origin(path) == "default" && !regexp.MustCompile(`(url|password)_file$`).MatchString(path) && !elsewhere {
			t.Errorf("config.yaml does not have %s", path)
		}
		key := path[strings.LastIndexByte(path, '.')+1:]
		if !regexp.MustCompile(`(?m)^ *#?` + key + `:`).Match(text) {
			t.Errorf("config.yaml does not name %s", key)
		}
	}
	want := Limit{
		Rate: Rates{"100 per 1h, sliding window"}, Algorithm: "sliding_window", Anchor: limit.AnchorStart, Per: "key", Count: "cost",
		Overrides: Overrides{"acct_1": "500/1h"}, Slack: limit.DefaultSlack(time.Hour), ArriveWithin: limit.DefaultArriveWithin(time.Hour), SendWithin: limit.DefaultSendWithin(time.Hour),
		Hosts: []string{"api.stripe.com"}, RetryAfter: time.Hour, Headers: Headers{[]string{"x-my-reset"}, []string{"x-ratelimit-reset"}}, Trust: "lower",
	}
	want.Windows = []Window{{Rate: limit.Rate{Units: 100, Window: time.Hour}, Overrides: map[string]int64{"acct_1": 500}}}
	want.Shares, want.Parts = Shares{"retries": "20%", "rest": "80%"}, limit.Shares{limit.Retries: 20, limit.Rest: 80}
	if diff := cmp.Diff(want, c.Limits["stripe"]); diff != "" {
		t.Errorf("the limit of the example has not the defaults (-want +got):\n%s", diff)
	}
}

func TestFileIsFound(t *testing.T) {
	dir, empty := t.TempDir(), t.TempDir()
	write := func(name, level string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("log: {level: "+level+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	flag, env, _ := write("flag.yaml", "debug"), write("env.yaml", "warn"), write("config.yaml", "error")
	environ := map[string]string{"CALLQ_CONFIG": env}
	for want, source := range map[string]Source{
		"debug": {Path: flag, Env: environ}, // -c before CALLQ_CONFIG
		"warn":  {Env: environ},             // before ./config.yaml
		"error": {},
		"info":  {}, // none is needed
	} {
		if t.Chdir(dir); want == "info" {
			t.Chdir(empty)
		}
		if got, err := Load(source); err != nil || got.Log.Level != want {
			t.Errorf("%+v: %v of %+v, want level %s", source, err, got, want)
		}
	}
	for name, s := range map[string]Source{
		"-c":           {Path: filepath.Join(dir, "none.yaml")},
		"CALLQ_CONFIG": {Env: map[string]string{"CALLQ_CONFIG": filepath.Join(dir, "none.yaml")}},
		"a folder":     {Path: dir},
	} {
		if _, err := Load(s); err == nil || !strings.Contains(err.Error(), "cannot be read: ") {
			t.Errorf("%s names no file: error %v", name, err)
		}
	}
}
