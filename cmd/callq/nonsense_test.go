package main

import (
	"context"
	"io"
	"strings"
	"testing"
)

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
