package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/migrations"
)

const (
	waitMost   = 2 * time.Minute
	askAgain   = 100 * time.Millisecond
	beCallq    = "CALLQ_TEST_BE_CALLQ" // set: the test's binary stands in for the program
	noPostgres = "postgres://nobody@127.0.0.1:1/none"
	noRedis    = "redis://127.0.0.1:1"
)

func TestMain(m *testing.M) {
	if os.Getenv(beCallq) != "" {
		main()
	}
	flag.Parse()
	var err error
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		err = parallel.Value.Set("12") // these tests wait far more than they compute
	}
	if dir := os.Getenv("TEST_TMPDIR"); dir != "" {
		err = errors.Join(err, os.Setenv("TMPDIR", dir)) // for servers of their own: in memory, see internal/local/servers
	}
	if err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// runCode is a run of the program as main does it; it returns the exit code.
func runCode(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, environ []string) int {
	return exitCode(stderr, run(ctx, args, stdin, stdout, stderr, environ))
}

// world is what a run of the program finds around it.
type world struct {
	t               *testing.T
	postgres, redis string
	config          string // its text
	stdin           string
}

// newWorld has a Postgres with the schema, and no Redis.
func newWorld(t *testing.T) world {
	t.Helper()
	return world{t: t, postgres: pgtest.NewURL(t), redis: noRedis}
}

// withRedis starts a Redis of the test's own.
func (w world) withRedis() (world, *local.RedisServer) {
	w.t.Helper()
	server, err := local.StartRedis(w.t.Context(), local.Redis{})
	must(w.t, err)
	w.t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			w.t.Error(err)
		}
	})
	w.redis = server.URL()
	return w, server
}

func (w world) environ() []string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "config.yaml")
	must(w.t, os.WriteFile(path, []byte(w.config), 0o600))
	return []string{"DATABASE_URL=" + w.postgres, "REDIS_URL=" + w.redis, "CALLQ_CONFIG=" + path}
}

// answer is what a run left.
type answer struct {
	code           int
	stdout, stderr string
}

// run runs the program to its end.
func (w world) run(args ...string) answer {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitMost)
	defer cancel()
	var out, errs buffer
	code := runCode(ctx, args, strings.NewReader(w.stdin), &out, &errs, w.environ())
	if ctx.Err() != nil {
		w.t.Fatalf("callq %v did not end within %s\n%s", args, waitMost, &errs)
	}
	return answer{code, out.String(), errs.String()}
}

// do is a run that must go well; it returns stdout.
func (w world) do(args ...string) string {
	w.t.Helper()
	a := w.run(args...)
	if a.code != 0 {
		w.t.Fatalf("callq %v: exit code %d\n%s", args, a.code, a.stderr)
	}
	return a.stdout
}

// connect opens a connection to the database, which ends with the test.
func (w world) connect() *pgx.Conn {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context()) // also for what runs when the test ends
	conn, err := pgx.Connect(ctx, w.postgres)
	must(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close(ctx) })
	return conn
}

// exec runs SQL on the database.
func (w world) exec(sql string) {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	conn := w.connect()
	defer conn.Close(ctx)
	_, err := conn.Exec(ctx, `SET callq.repair = on`) // tests make what callq does not
	must(w.t, err)
	if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// one is what a query answers.
func one[T any](w world, sql string, args ...any) (value T) {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.WithoutCancel(w.t.Context()))
	if err := conn.QueryRow(w.t.Context(), sql, args...).Scan(&value); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// call enqueues a call of url, and returns its id.
func (w world) call(url string, flags ...string) string {
	w.t.Helper()
	return strings.TrimSpace(w.do(append([]string{"enqueue", "--data", fmt.Sprintf(`{"url": %q}`, url)}, flags...)...))
}

// done waits until a call is. It asks on one connection: to run the program each time would take all of the
// machine.
func (w world) done(id string) {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.WithoutCancel(w.t.Context()))
	eventually(w.t, "call "+id+" is done", func() bool {
		var is callqueue.Status
		err := conn.QueryRow(w.t.Context(), `SELECT status FROM call_queue WHERE id = $1::text::bigint`, id).Scan(&is)
		return err == nil && is == callqueue.StatusDone
	})
}

// empty takes the schemas away.
func (w world) empty() {
	w.t.Helper()
	w.exec(`DROP SCHEMA public CASCADE; DROP SCHEMA callq CASCADE; CREATE SCHEMA public`)
}

// buffer may be written and read at once.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// eventually waits for a fact.
func eventually(t *testing.T, fact string, holds func() bool) {
	t.Helper()
	deadline := time.After(waitMost)
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s", waitMost, fact)
		case <-time.After(askAgain):
		}
	}
}

// must ends the test where there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refuses runs what must fail, with this exit code and these words on stderr.
func (w world) refuses(code int, words string, args ...string) {
	w.t.Helper()
	if a := w.run(args...); a.code != code || !strings.Contains(a.stderr, words) {
		w.t.Errorf("callq %v: exit code %d, want %d with %q\n%s%s", args, a.code, code, words, a.stdout, a.stderr)
	}
}

// answers runs a line of arguments, and wants this exit code and these words: on stdout, or on stderr of a failure.
func (w world) answers(code int, line string, words ...string) answer {
	w.t.Helper()
	a := w.run(strings.Fields(line)...)
	out := a.stdout
	if code != 0 {
		out = a.stderr
	}
	if a.code != code {
		w.t.Errorf("callq %s: exit code %d, want %d\n%s%s", line, a.code, code, a.stdout, a.stderr)
	}
	has(w.t, out, words...)
	return a
}

// has wants all these words in a text.
func has(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in:\n%s", w, text)
		}
	}
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

// Every command: what it answers to good use, to bad use, and without its servers.
func TestCommands(t *testing.T) {
	t.Parallel()
	up, _ := newWorld(t).withRedis()
	up.do("enqueue", "--key", "acct_42", "--data", `{"url": "https://api.example.com/"}`)
	up.do("dispatch", "--once")
	noRedisWorld := world{t: t, postgres: up.postgres, redis: noRedis}
	nothing := world{t: t}
	bad := world{t: t, config: "limits: {api: {rate: 0/s}}\nqueues: {q: {limits: [nope]}}\n"}

	runUses(t, []use{
		{"help", nothing, "--help", 0, "Exit codes"},
		{"an unknown command", nothing, "frobnicate", 2, `unknown command "frobnicate"`},
		{"an unknown form of output", nothing, "status -o xml", 2, "table, json or jsonl"},
		{"a timeout of nothing", nothing, "status --timeout 0", 2, "0s is less than 1ms"},
		{"a noun without its verb", nothing, "calls", 2, "callq calls needs a verb"},
		{"no Postgres configured", nothing, "status", 2, "DATABASE_URL"},
		{"no Redis configured", world{t: t, postgres: up.postgres}, "dispatch --once", 2, "REDIS_URL"},
		{"a file that is not there", nothing, "status -c /no/such.yaml", 2, "/no/such.yaml"},
		{"a bad configuration", bad, "status", 2, "lets nothing through"},

		{"version as json", nothing, "version -o json", 0, `"go": "go`},
		{"config check, bad file", bad, "config check", 2, "config.yaml:2:"},
		{"serve, bad configuration", bad, "serve", 2, "not a limit"},

		{"status", up, "status", 0, "no worker is alive: nothing is sent"},
		{"status as json", up, "status -o json", 0, `"unhandled": []`},
		{"calls get, one of two", up, "calls get 1 4711", 4, "acct_42"},
		{"calls list, a limit of nothing", up, "calls list --limit 0", 2, "--limit is 0"},
		{"limits list", up, "limits list", 0, "OCCUPIED"},
		{"verify", up, "verify", 0, "every rule holds"},
		{"maintain retention", up, "maintain retention", 0, "removed 0 calls"},
		{"maintain vacuum", up, "maintain vacuum", 0, "call_queue"},
		{"migrate up, nothing to do", up, "migrate up", 0, "nothing to apply"},
		{"migrate status", up, "migrate status -o jsonl", 0, `"file":"00001_calls.sql","applied":true`},
		{"migrate down, nobody to ask", up, "migrate down", 2, "--yes"},
		{"migrate sql", nothing, "migrate sql", 0, "CREATE TABLE public.call_queue"},
		{"dispatch --once", up, "dispatch --once", 0, ""},
		{"dispatch --once, Redis away", noRedisWorld, "dispatch --once --timeout 2s", 5, "Redis cannot be reached, tried for 2s"},
		{"health, nowhere to ask", world{t: t, config: "http: {listen: off}"}, "health --ready", 2, "http.listen is off"},

		{"enqueue, data that is not JSON", up, "enqueue --data {", 2, "Data is not valid JSON"},
		{"enqueue, no such data file", up, "enqueue --data @/no/such.json", 2, "/no/such.json"},
		{"enqueue, a priority out of range", up, "enqueue --priority 10", 2, "Priority is 10"},
		{"enqueue, a cost below nothing", up, "enqueue --cost -1", 2, "Cost is -1"},
		{"enqueue, at and in", up, "enqueue --at 2026-11-21T09:00:00Z --in 1h", 2, "[at in] were all set"},
		{"enqueue, not a time", up, "enqueue --at noon", 2, "invalid time format"},
		{"enqueue, no such file", up, "enqueue --from /no/such.jsonl", 2, "/no/such.jsonl"},
		{"enqueue, a file of no name", up, "enqueue --from=", 2, "--from: open"},
		{"enqueue, one unique key for a file", up, "enqueue --from - --unique a", 2, "[from unique] were all set"},
	}, nil)
}

// No command takes a flag or an argument that it does not know.
func TestUnknownFlagsAndArguments(t *testing.T) {
	t.Parallel()
	w := world{t: t}
	var check func([]*cobra.Command)
	check = func(commands []*cobra.Command) {
		for _, cmd := range commands {
			path := strings.Fields(cmd.CommandPath())[1:]
			w.refuses(exitUsage, "unknown flag: --frobnicate (see "+cmd.CommandPath()+" --help)", append(path, "--frobnicate")...)
			if !strings.Contains(cmd.Use, " ") { // it takes none
				w.refuses(exitUsage, fmt.Sprintf(`unknown command "now" for %q`, cmd.CommandPath()), append(path, "now")...)
			}
			check(cmd.Commands())
		}
	}
	check(rootCommand(new(app)).Commands())
}

// use is a run of the program, and what it answers.
type use struct {
	name  string
	in    world
	args  string // between spaces
	code  int
	words string // in what is written, stdout first
}

// runUses runs the program, each use beside the others; also looks at each answer too, unless it is nil.
func runUses(t *testing.T, uses []use, also func(*testing.T, answer)) {
	t.Helper()
	for _, use := range uses {
		t.Run(use.name, func(t *testing.T) {
			t.Parallel()
			in := use.in
			in.t = t
			a := in.run(strings.Split(use.args, " ")...) // not Fields: what is to be completed may be empty
			if all := a.stdout + a.stderr; a.code != use.code || !strings.Contains(all, use.words) {
				t.Errorf("exit code %d, want %d with %q:\n%s", a.code, use.code, use.words, all)
			}
			if a.code == 0 && strings.Contains(a.stderr, "callq:") || a.code != 0 && a.stderr == "" {
				t.Errorf("exit code %d, and on stderr: %q", a.code, a.stderr)
			}
			if strings.Contains(a.stderr, "goroutine ") || strings.Contains(a.stderr, "&{") {
				t.Errorf("not for people: %s", a.stderr)
			}
			if also != nil {
				also(t, a)
			}
		})
	}
}

// What Postgres lacks is said with what to do about it, by every command alike.
func TestSchemaIsChecked(t *testing.T) {
	t.Parallel()
	newest := migrations.Version()
	old := fmt.Sprintf("version %d, and this callq needs %d: run `callq migrate up`", newest-1, newest)
	for _, test := range []struct {
		name, args, words string
		prepare           func(world)
	}{
		{"missing", "status", "version 0, and this callq needs", world.empty},
		{"old", "calls list", old, func(w world) { w.do("migrate", "down", "--yes") }},
		{"new", "enqueue", "use a newer callq", func(w world) {
			w.exec("INSERT INTO callq.migrations (version_id, is_applied) VALUES (99, true)")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			test.prepare(w)
			w.answers(exitFailed, test.args, test.words)
		})
	}
}
