package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/callq/callq"
	"github.com/callq/callq/internal/config"
)

// The commands that are about callq itself and not about its calls: what they answer to good use, to bad
// use, and where what they ask is away.
func TestOwnCommands(t *testing.T) {
	t.Parallel()
	live := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(`{"asked": "` + r.URL.Path + `"}`))
	}))
	t.Cleanup(live.Close)
	at := func(address string) world {
		return world{t: t, config: "http: {listen: '" + strings.TrimPrefix(address, "http://") + "'}\n"}
	}
	nothing := world{t: t}
	away := world{t: t, postgres: noPostgres, redis: noRedis}
	bad := world{t: t, config: "limits: {api: {rate: 0/s}}\nhttp: {listn: off}\n"}
	runUses(t, []use{
		{"help names all", nothing, "--help", 0, "completion"},
		{"help names dev", nothing, "--help", 0, "  dev "},

		{"config, no verb", nothing, "config", 2, "callq config needs a verb"},
		{"config init to stdout", nothing, "config init -", 0, "callq's configuration, with every key at its default"},
		{"config schema", bad, "config schema", 0, "json-schema.org"},
		{"config init, two files", nothing, "config init a b", 2, "accepts at most 1 arg(s), received 2"},
		{"config init, no such folder", nothing, "config init /no/such/config.yaml", 1, "/no/such/config.yaml"},
		{"config init, a bad file is no matter", bad, "config init -", 0, "postgres:"},
		{"config check, servers away", away, "config check", 0, "ok:"},
		{"config check, bad file", bad, "config check", 2, "is not a key of http"},
		{"config check, bad URL", nothing, "config check --postgres-url nonsense", 2, "--postgres-url: postgres.url: is not a Postgres URL"},
		{"config show", nothing, "config show", 0, "schedule.dispatch"},
		{"config show, servers away", away, "config show", 0, "postgres://nobody@127.0.0.1:1/none"},
		{"config show, a flag", away, "config show --redis-url redis://h:2", 0, "--redis-url"},
		{"config show as json", nothing, "config show -o json", 0, `"value": "100"`},
		{"config show as jsonl", nothing, "config show -o jsonl", 0, `{"key":"log.level","value":"info","source":"default"}`},
		{"config show, bad file", bad, "config show", 2, "config.yaml:1:22"},

		{"completion bash", nothing, "completion bash", 0, "complete -o default"},
		{"completion zsh", nothing, "completion zsh", 0, "#compdef callq"},
		{"completion, a bad file is no matter", bad, "completion fish", 0, "complete -c callq"},
		{"completed: commands", nothing, "__complete config ", 0, "show\tShow every setting"},

		{"version", nothing, "version", 0, "callq "},
		{"version, a bad file is no matter", bad, "version", 0, "schema"},
		{"version, servers away", away, "version -o jsonl", 0, `"schema":`},

		{"health", at(live.URL), "health", 0, "/livez"},
		{"health, Postgres and Redis are no matter", world{t: t, postgres: noPostgres, config: at(live.URL).config}, "health", 0, "/livez"},
		{"health --ready, not ready", at(live.URL), "health --ready", 1, "answered 503"},
		{"health, nobody there", at("127.0.0.1:1"), "health", 1, "no callq answers"},
		{"health, no answer", at(silentServer(t).address), "health --timeout 300ms", 1, "no callq answers"},
		{"health, any port", at("127.0.0.1:0"), "health", 2, "set an address with a port"},
		{"health, bad file", bad, "health", 2, "is not a key of http"},

		{"demo, no calls", nothing, "demo --calls 0", 2, "--calls is 0; it may be 1 to 1000000"},
		{"demo, no rate", nothing, "demo --rate 0/s", 2, "--rate: a rate of 0"},

		{"dev, a server that is not its own", nothing, "dev --postgres-url postgres://h/d", 2, "leave --postgres-url out"},
		{"dev, bad file", bad, "dev", 2, "is not a key of http"},
		{"dev, no folder to be had", nothing, "dev --dir /dev/null/dev", 1, "give another folder than /dev/null/dev with --dir"},
	}, func(t *testing.T, a answer) {
		if a.code != 0 && a.stdout != "" {
			t.Errorf("exit code %d, and on stdout: %q", a.code, a.stdout)
		}
	})
}

// The demo brings up all it needs and says what it saw.
func TestDemo(t *testing.T) {
	t.Parallel()
	a := world{t: t}.run("demo", "--calls", "20", "--rate", "15/1s", "-o", "json")
	v := decode[demoVerdict](t, a.stdout)
	if a.code != 0 || v.Done != 20 || v.Requests != 20 || v.Max > 15 || v.R429 != 0 {
		t.Errorf("exit code %d, verdict %+v\n%s", a.code, v, a.stderr)
	}
}

// What is written is the shipped file, is good, and takes nothing's place unasked.
func TestConfigInit(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	w := world{t: t}
	has := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(file); err != nil || string(text) != want {
			t.Errorf("the file has %q, %v", text, err)
		}
	}
	if out := w.do("config", "init", file); out != "wrote "+file+"\n" {
		t.Errorf("said %q", out)
	}
	has(strings.TrimPrefix(callq.ConfigYAML, "# yaml-language-server: $schema=docs/config.schema.json\n"))
	w.do("config", "check", "-c", file)
	for _, v := range decode[[]config.Value](t, w.do("config", "show", "-o", "json", "-c", file)) {
		if v.Value != "" && !strings.HasPrefix(v.Source, file+":") { // what is commented out has none
			t.Errorf("%s = %s is from %s", v.Key, v.Value, v.Source)
		}
	}

	const mine = "log: {level: warn}\n"
	must(t, os.WriteFile(file, []byte(mine), 0o600))
	w.answers(exitFailed, "config init --yes -c "+file, file, "file exists")
	has(mine)
}

// What people and scripts give by mistake is refused.
func TestNonsense(t *testing.T) {
	t.Parallel()
	w := published(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"calls", "list", "--limit", "abc"}, 2, `invalid argument "abc" for "--limit" flag`},
		{[]string{"enqueue", "--priority", ""}, 2, `invalid argument "" for "--priority" flag`},
		{[]string{"limits", "set", "stripe"}, 2, "accepts 2 arg(s), received 1 (see callq limits set --help)"},
		{[]string{"status", "--yes=maybe"}, 2, `invalid argument "maybe" for "--yes" flag`},
		{[]string{"limits", "pause", "stripe", "--for", "1x"}, 2, `"1x" is not a duration: write numbers with units`},
		{[]string{"queues", "pause", "\xff"}, 1, "invalid byte sequence"},
		{[]string{"queues", "resume", ""}, 4, `no such queue: ""; `},
		{[]string{"limits", "get", strings.Repeat("x", 1000)}, 4, "no such limit: " + strings.Repeat("x", 59) + "…;"},
	} {
		a := w.run(c.args...)
		if a.code != c.code || !strings.Contains(a.stderr, c.says) {
			t.Errorf("callq %q: exit code %d, want %d and %s\n%.500s", c.args, a.code, c.code, c.says, a.stderr)
		}
	}
}

func TestReasonOfAPauseIsCut(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.do("limits", "pause", "stripe", "--reason", strings.Repeat("long ", 200))
	w.do("queues", "pause", "payments", "--reason", strings.Repeat("long ", 200))
	for line := range strings.Lines(w.do("status")) {
		if len(line) > 250 {
			t.Errorf("a line of %d bytes: %s", len(line), line)
		}
	}
}

// A command that waits for what is typed ends with the first signal.
func TestInterruptedWhileReading(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, args := range [][]string{{"enqueue", "--data", "-"}, {"enqueue", "--from", "-"}} {
		ctx, interrupt := context.WithCancel(t.Context())
		var out, errs buffer
		typed, typing := io.Pipe()
		ended := make(chan int, 1)
		go func() { ended <- runCode(ctx, args, typed, &out, &errs, w.environ()) }()
		for _, text := range []string{"{", " "} { // each returns when it was read, the second when the first was taken in
			if _, err := io.WriteString(typing, text); err != nil {
				t.Fatal(err)
			}
		}
		interrupt()
		if code := receive(t, ended, "the command ends"); code != exitFailed || !strings.Contains(errs.String(), "interrupted") {
			t.Errorf("callq %v: exit code %d: %s", args, code, &errs)
		}
		typing.Close()
	}
}
