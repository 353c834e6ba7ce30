package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
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

		{"config, no verb", nothing, "config", 2, "needs a verb: apply check init show"},
		{"config, another verb", nothing, "config print", 2, `"print" is not a verb`},
		{"config init to stdout", nothing, "config init -", 0, "callq's configuration, with every key at its default"},
		{"config init, two files", nothing, "config init a b", 2, "takes [FILE|-]: 2 were given"},
		{"config init, bad flag", nothing, "config init --overwrite", 2, "unknown flag: --overwrite"},
		{"config init, no such folder", nothing, "config init /no/such/config.yaml", 1, "/no/such/config.yaml"},
		{"config init, a bad file is no matter", bad, "config init -", 0, "postgres:"},
		{"config check, servers away", away, "config check", 0, "ok:"},
		{"config check, bad file", bad, "config check", 2, "is not a key of http"},
		{"config check, bad flag", nothing, "config check --fix", 2, "unknown flag: --fix"},
		{"config check, bad URL", nothing, "config check --postgres-url nonsense", 2, "--postgres-url: postgres.url: is not a Postgres URL"},
		{"config show", nothing, "config show", 0, "schedule.dispatch"},
		{"config show, servers away", away, "config show", 0, "postgres://nobody@127.0.0.1:1/none"},
		{"config show, a flag", away, "config show --redis-url redis://h:2", 0, "--redis-url"},
		{"config show as json", nothing, "config show -o json", 0, `"value": 100`},
		{"config show as jsonl", nothing, "config show -o jsonl", 0, `{"key":"log.level","value":"info","source":"default"}`},
		{"config show, bad file", bad, "config show", 2, "config.yaml:1:22"},
		{"config show, bad flag", nothing, "config show --secrets", 2, "unknown flag: --secrets"},

		{"completion bash", nothing, "completion bash", 0, "complete -o default"},
		{"completion zsh", nothing, "completion zsh", 0, "#compdef callq"},
		{"completion fish", nothing, "completion fish", 0, "complete -c callq"},
		{"completion powershell", nothing, "completion powershell", 0, "Register-ArgumentCompleter"},
		{"completion, a bad file is no matter", bad, "completion zsh", 0, "#compdef callq"},
		{"completion, no shell", nothing, "completion", 2, "needs a verb: bash fish powershell zsh"},
		{"completion, no such shell", nothing, "completion tcsh", 2, `"tcsh" is not a verb`},
		{"completion, bad flag", nothing, "completion bash --loud", 2, "unknown flag: --loud"},
		{"completion, an argument too many", nothing, "completion bash now", 2, "now"},
		{"completed: commands", nothing, "__complete config ", 0, "show\tShow every setting"},
		{"completed: a flag's values", nothing, "__complete status -o ", 0, "jsonl"},

		{"version", nothing, "version", 0, "callq "},
		{"version, a bad file is no matter", bad, "version", 0, "schema"},
		{"version, servers away", away, "version -o jsonl", 0, `"schema":`},
		{"version, bad flag", nothing, "version --short", 2, "unknown flag: --short"},
		{"version, an argument too many", nothing, "version 2", 2, `"2"`},

		{"health", at(live.URL), "health", 0, "/livez"},
		{"health, Postgres and Redis are no matter", world{t: t, postgres: noPostgres, config: at(live.URL).config}, "health", 0, "/livez"},
		{"health --ready, not ready", at(live.URL), "health --ready", 1, "answered 503"},
		{"health, nobody there", at("127.0.0.1:1"), "health", 1, "no callq answers"},
		{"health, no answer", at(silentServer(t)), "health --timeout 300ms", 1, "no callq answers"},
		{"health, any port", at("127.0.0.1:0"), "health", 2, "set an address with a port"},
		{"health, bad file", bad, "health", 2, "is not a key of http"},
		{"health, bad flag", nothing, "health --deep", 2, "unknown flag: --deep"},

		{"demo, bad flag", nothing, "demo --fast", 2, "unknown flag: --fast"},
		{"demo, no calls", nothing, "demo --calls 0", 2, "--calls is 0; it may be 1 to 1000000"},
		{"demo, no rate", nothing, "demo --rate 0/s", 2, "--rate: a rate of 0"},
		{"demo, an argument too many", nothing, "demo now", 2, "now"},

		{"dev, bad flag", nothing, "dev --fast", 2, "unknown flag: --fast"},
		{"dev, an argument too many", nothing, "dev now", 2, "now"},
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

// Without servers to start, demo and dev say which they lack, and where they looked.
func TestNoServersToStart(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"demo"}, {"dev", "--dir", t.TempDir()}} {
		p := world{t: t}.command(args...)
		p.cmd.Env = append(p.cmd.Env, "CALLQ_POSTGRES_BIN=/no/such/folder")
		p.start().exits(exitFailed)
		if !strings.Contains(p.log.String(), "/no/such/folder") {
			t.Errorf("%v: %s", args, p.log)
		}
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
	has(callq.ConfigYAML)
	w.do("config", "check", "-c", file)
	for _, v := range decode[[]config.Value](t, w.do("config", "show", "-o", "json", "-c", file)) {
		given := strings.HasPrefix(v.Source, file+":")
		if commentedOut := v.Value == ""; given == commentedOut {
			t.Errorf("%s = %v is from %s", v.Key, v.Value, v.Source)
		}
	}

	const mine = "log: {level: warn}\n"
	write := func() {
		t.Helper()
		must(t, os.WriteFile(file, []byte(mine), 0o600))
	}
	write()
	w.answers(exitUsage, "config init -c "+file, file+" is there already", "--yes")
	has(mine)
	for _, flag := range []string{"--yes", "--force"} {
		write()
		if out := w.do("config", "init", "-c", file, flag, "-o", "jsonl"); out != `{"file":"`+file+`"}`+"\n" {
			t.Errorf("%s: said %q", flag, out)
		}
		has(callq.ConfigYAML)
	}
}

// The shell takes what it is given.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "source /dev/stdin && complete -p callq")
	cmd.Stdin = strings.NewReader(world{t: t}.do("completion", "bash"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "__start_callq") {
		t.Errorf("%v: %s", err, out)
	}
}

// What people and scripts give by mistake is refused in their words: exit code 2, and no name of Go or Postgres.
func TestNonsense(t *testing.T) {
	t.Parallel()
	w := published(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"calls", "list", "--limit", "abc"}, 2, `--limit: "abc" is not a whole number (see callq calls list --help)`},
		{[]string{"enqueue", "--priority", ""}, 2, `--priority: "" is not a whole number`},
		{[]string{"demo", "--calls", strings.Repeat("9", 1000)}, 2, `9…" is out of bounds`},
		{[]string{"limits", "set", "stripe"}, 2, "callq limits set takes LIMIT RATE: 1 were given (see callq limits set --help)"},
		{[]string{"limits", "get", "--bogus"}, 2, "unknown flag: --bogus (see callq limits get --help)"},
		{[]string{"verify", "x"}, 2, `callq verify takes no arguments: "x"`},
		{[]string{"status", "--yes=maybe"}, 2, `--yes: "maybe" is not true or false`},
		{[]string{"limits", "pause", "stripe", "--for", "1x"}, 2, `--for: "1x" is not a duration: write numbers with units`},
		{[]string{"calls", "list", "--key", "\xff"}, 2, "list calls: what was given is not valid UTF-8"},
		{[]string{"queues", "pause", "\xff"}, 2, `pause queue "\xff": what was given is not valid UTF-8`},
		{[]string{"limits", "pause", "stripe", "--reason", "\xff"}, 2, `pause limit "stripe": what was given is not valid UTF-8`},
		{[]string{"queues", "resume", ""}, 4, `no such queue: ""; `},
		{[]string{"limits", "get", strings.Repeat("x", 1000)}, 4, "no such limit: " + strings.Repeat("x", 59) + "…;"},
	} {
		a := w.run(c.args...)
		if a.code != c.code || !strings.Contains(a.stderr, c.says) || strings.Contains(a.stderr, "strconv") || strings.Contains(a.stderr, "SQLSTATE") {
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

func TestAnAddressTriedTwiceIsNamedOnce(t *testing.T) {
	t.Parallel()
	a := world{t: t, postgres: noPostgres}.run("status", "--timeout", "100ms")
	for line := range strings.Lines(a.stderr) {
		if strings.Count(line, "127.0.0.1:1 ") > 1 {
			t.Errorf("exit code %d: %s", a.code, line)
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
		for range 2 { // each returns when it was read, the second when the first was taken in
			if _, err := io.WriteString(typing, "{"); err != nil {
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
