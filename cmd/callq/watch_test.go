package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"github.com/callq/callq/internal/admin"
)

func aStatus() *admin.Status {
	reason := "incident"
	limit := func(name, state string, room int64, queues ...string) admin.Limit {
		return admin.Limit{Name: name, Rate: "5 per 1s", Queues: queues, LimitState: admin.LimitState{Occupied: 5 - room, Room: room, State: state}}
	}
	return &admin.Status{
		At: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC),
		Verdict: admin.Verdict{Level: admin.Problem, Headline: "1 problem; 15 calls wait", Points: []admin.Finding{
			{Level: admin.Problem, What: "no worker is alive: nothing is sent", Fix: "callq serve, or callq work"},
			{Level: admin.Note, What: "limit full is full; 5 calls wait for it"},
		}},
		Queues: []admin.Queue{
			{Name: "idle", Configured: true},
			{Name: "busy", Configured: true, Due: 10, Limits: []string{"roomy"}},
			{Name: "held", Configured: true, Due: 5, Limits: []string{"full"}, HeldBy: []string{"full"}},
			{Name: "off", Configured: true, Paused: &reason},
		},
		Limits: []admin.Limit{
			limit("free", "open", 5, "idle"), limit("full", "open", 0, "held"), limit("nobody's", "paused", 0),
			limit("paused", "paused", 5, "off"), limit("roomy", "open", 3, "busy"),
		},
		Workers:     []admin.Worker{{Live: true, Running: 3, Slots: 100}, {Running: 7, Slots: 100}},
		Dispatchers: []string{"h/1"},
		Oldest:      &admin.Oldest{ID: 7, Queue: "busy", DueAt: time.Date(2026, 11, 29, 11, 59, 57, 0, time.UTC)},
	}
}

// The verdict is on top, and of queues and limits those that are closed, full, or calls wait for.
func TestScreen(t *testing.T) {
	t.Parallel()
	want := `1 problem; 15 calls wait.
problem  no worker is alive: nothing is sent
         callq serve, or callq work
note     limit full is full; 5 calls wait for it

QUEUE  DUE  SCHEDULED  DISPATCHED  RUNNING  FAILED 24H  STATE                 LIMITS
off    0    0          0           0        0           paused: incident      -
held   5    0          0           0        0           , held by limit full  full
busy   10   0          0           0        0           -                     roomy
idle   0    0          0           0        0           -                     -

LIMIT     OCCUPIED  ROOM  DUE  STATE   RATE      QUEUES
paused    ~0        ~5    0    paused  5 per 1s  off
full      ~5        ~0    5    full    5 per 1s  held
roomy     ~2        ~3    10   open    5 per 1s  busy
free      ~0        ~5    0    open    5 per 1s  idle
nobody's  ~5        ~0    0    paused  5 per 1s  -

1 worker alive, 3 of 100 slots in use; 1 dispatcher alive

at 2026-11-29 12:00:00Z; oldest due call: 7 in busy, due 3s ago; q quits`
	if diff := cmp.Diff(want, ansi.Strip(strings.Join(screen(aStatus(), 200, 100), "\n"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = `1 problem; 15 calls wait.
problem  no worker is alive: nothing is…
         callq serve, or callq work
note     limit full is full; 5 calls wa…

QUEUE  DUE  SCHEDULED  DISPATCHED  RUNN…
off    0    0          0           0   …
… and 3 more

LIMIT     OCCUPIED  ROOM  DUE  STATE   …
paused    ~0        ~5    0    paused  …
… and 4 more

1 worker alive, 3 of 100 slots in use; …

at 2026-11-29 12:00:00Z; oldest due cal…`
	if diff := cmp.Diff(want, ansi.Strip(strings.Join(screen(aStatus(), 40, 16), "\n"))); diff != "" {
		t.Errorf("cut (-want +got):\n%s", diff)
	}
}

// Whatever the terminal's size, nothing is wider or higher, and each row is shown or counted where its table is.
func TestScreenFits(t *testing.T) {
	t.Parallel()
	s := aStatus()
	for i := range 30 {
		s.Limits = append(s.Limits, admin.Limit{Name: fmt.Sprint("界界", i), Queues: []string{"q"}, LimitState: admin.LimitState{State: "open", Room: 1}})
	}
	for width := range 120 {
		for height := range 60 {
			lines := screen(s, width, height)
			if len(lines) > height || height > 0 && !strings.HasPrefix("1 problem", ansi.Strip(lines[0])[:min(width/2, 9)]) {
				t.Fatalf("%d x %d has %d lines:\n%s", width, height, len(lines), strings.Join(lines, "\n"))
			}
			rows, more := 0, 0
			for i, line := range lines {
				if ansi.StringWidth(line) > width {
					t.Fatalf("%d x %d: line %d is %d wide: %s", width, height, i, ansi.StringWidth(line), line)
				}
				if strings.Contains(line, "LIMIT ") {
					for _, row := range lines[i+1:] {
						if row == "" {
							break
						}
						rows++
						if n, _ := fmt.Sscanf(row, "… and %d more", &more); n == 1 {
							rows--
						}
					}
				}
			}
			if (rows > 0 || more > 0) && width > 20 && rows+more != len(s.Limits) {
				t.Fatalf("%d x %d: %d rows and %d more of %d:\n%s", width, height, rows, more, len(s.Limits), strings.Join(lines, "\n"))
			}
		}
	}
}

// On a terminal it fills the screen, follows its size, lives through a Postgres that is away, and ends with q.
func TestWatchOnTerminal(t *testing.T) {
	t.Parallel()
	reads := make(chan error)
	keys, typed := io.Pipe()
	defer typed.Close()
	var out buffer
	m := &watch{read: func() (*admin.Status, error) { err := <-reads; return aStatus(), err }}
	p := tea.NewProgram(m, tea.WithContext(t.Context()), tea.WithInput(keys), tea.WithOutput(&out), tea.WithWindowSize(80, 24),
		tea.WithEnvironment([]string{"TERM=xterm-256color"}), tea.WithoutSignalHandler())
	ended := make(chan error, 1)
	go func() { _, err := p.Run(); ended <- err }()
	shows := func(text string) {
		t.Helper()
		eventually(t, text, func() bool { return strings.Contains(ansi.Strip(out.String()), text) })
	}
	reads <- nil
	shows("1 problem; 15 calls wait.")
	shows("q quits")
	reads <- errors.New("connection refused")
	shows("not read since 2026-11-29 12:00:00Z: connection refused")
	p.Send(tea.WindowSizeMsg{Width: 40, Height: 13})
	shows("… and 2 more")
	_, err := typed.Write([]byte("q"))
	must(t, err)
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("q did not end it")
	}
	if m.ended != nil {
		t.Error(m.ended)
	}
}

// What cannot be read at first ends it; and so does Ctrl-C, well.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		keys string
		err  error
	}{{"", errors.New("connection refused")}, {"\x03", nil}} {
		m := &watch{read: func() (*admin.Status, error) { return aStatus(), c.err }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(strings.NewReader(c.keys)), tea.WithOutput(&bytes.Buffer{}),
			tea.WithWindowSize(80, 24), tea.WithoutSignalHandler()).Run()
		if err != nil || !errors.Is(m.ended, c.err) {
			t.Errorf("keys %q: %v, ended with %v, want %v", c.keys, err, m.ended, c.err)
		}
	}
}
