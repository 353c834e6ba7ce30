package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressLine(t *testing.T) {
	t.Parallel()
	type told struct {
		at       time.Duration
		step     string
		done, of int64
	}
	const s = time.Second
	for name, c := range map[string]struct {
		about bool
		told  []told
		at    time.Duration
		want  string
	}{
		"nothing is countable": {false, nil, 12*s + 900*time.Millisecond, "verify … 12 s"},
		"a step":               {false, []told{{s, "calls", 0, 0}}, 3 * s, "verify: calls … 3 s"},
		"of nobody knows how many": {
			false, []told{{s, "attempts", 1000, 0}, {2 * s, "attempts", 12_345, 0}}, 3 * s, "verify: attempts  12,345 … 3 s",
		},
		"the first report is no measure": {
			false, []told{{5 * s, "", 1, 4}}, 7 * s, "verify  █████░░░░░░░░░░░░░░░  1 of 4",
		},
		"half is done": { // 100 took 10 s
			false,
			[]told{{5 * s, "", 100, 400}, {15 * s, "", 200, 400}},
			15 * s,
			"verify  ██████████░░░░░░░░░░  200 of 400, about 20 s left",
		},
		"it has come to a standstill": {
			false,
			[]told{{5 * s, "", 100, 400}, {15 * s, "", 200, 400}},
			205 * s,
			"verify  ██████████░░░░░░░░░░  200 of 400, about 7 min left",
		},
		"a step begins anew": {
			true,
			[]told{{s, "calls", 10, 20}, {2 * s, "calls", 19, 20}, {3 * s, "attempts", 0, 2000}, {4 * s, "attempts", 1500, 2000}},
			4 * s,
			"verify: attempts  ███████████████░░░░░  1,500 of about 2,000, about 1 s left",
		},
		"all is done": {false, []told{{s, "", 1, 7}, {2 * s, "", 7, 7}}, 2 * s, "verify  ████████████████████  7 of 7"},
		"more than was estimated": {
			true, []told{{s, "attempts", 10, 20}, {2 * s, "attempts", 30, 20}}, 3 * s, "verify: attempts  30 … 3 s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
			p := progress{what: "verify", about: c.about, begun: begun}
			for _, r := range c.told {
				p.report(begun.Add(r.at), r.step, r.done, r.of)
			}
			if got := p.line(begun.Add(c.at)); got != c.want {
				t.Errorf("%q\nwant %q", got, c.want)
			}
		})
	}
}

// The line comes after a second, stays below what else is written, fits the terminal and is gone at the end.
func TestLiveLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		takes time.Duration
		want  string
	}{
		"short": {900 * time.Millisecond, "begun again\n"},
		"long": {
			1600 * time.Millisecond,
			"begun again\n" + eraseLine + "enqueue … 1 s" + eraseLine + "again\n" + eraseLine + "enqueue  ░░░░░░…" + eraseLine + "enqueue  ░░░░░░…" + eraseLine,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var terminal bytes.Buffer
				line := startLine(&terminal, progress{what: "enqueue"}, func() int { return 17 })
				fmt.Fprintln(line, "begun again")
				if c.takes > time.Second {
					time.Sleep(1100 * time.Millisecond)
					fmt.Fprintln(line, "again")
					line.report("", 0, 100)
					c.takes -= 1100 * time.Millisecond
				}
				time.Sleep(c.takes)
				line.end()
				if got := terminal.String(); got != c.want {
					t.Errorf("%q\nwant %q", got, c.want)
				}
				time.Sleep(time.Minute)
				if fmt.Fprint(line, "later"); terminal.String() != c.want+"later" {
					t.Errorf("after the end: %q", terminal.String())
				}
			})
		})
	}
}

// Off a terminal nothing is written, and the work reports all the same.
func TestNoLineOffATerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stderr strings.Builder
		a := &app{stderr: &stderr}
		err := a.live(progress{what: "verify"}, func(report report) error {
			report("calls", 1, 2)
			time.Sleep(time.Minute)
			return io.EOF
		})
		if !errors.Is(err, io.EOF) || stderr.Len() > 0 || a.stderr != &stderr {
			t.Errorf("%v, %q", err, &stderr)
		}
	})
}

// How many calls a file has is guessed from the size of the first.
func TestAboutAll(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	must(t, os.WriteFile(path, []byte(strings.Repeat("{}\n", 100)), 0o600))
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	if size := sizeOf(file); aboutAll(25, 75, size) != 100 || aboutAll(0, 0, size) != 0 {
		t.Errorf("of %d bytes: %d calls", size, aboutAll(25, 75, size))
	}
	if n := aboutAll(25, 75, sizeOf(strings.NewReader("{}"))); n != 0 {
		t.Errorf("of a pipe: %d calls", n)
	}
}
