package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

const watchEvery = time.Second

// watchOnTerminal shows the status on a whole terminal, every second, until q, Ctrl-C or the end of ctx, which are its good
// ends.
func watchOnTerminal(ctx context.Context, db *database) error {
	m := &watch{read: func() (*admin.Status, error) { return readStatus(ctx, db) }}
	var environ []string
	for name, value := range db.env {
		environ = append(environ, name+"="+value)
	}
	options := []tea.ProgramOption{
		tea.WithContext(ctx), tea.WithOutput(db.stdout), tea.WithEnvironment(environ), tea.WithoutSignalHandler(), tea.WithInput(nil),
	}
	if isTerminal(db.stdin) {
		options = append(options, tea.WithInput(db.stdin))
	}
	_, err := tea.NewProgram(m, options...).Run()
	if ctx.Err() != nil && errors.Is(err, tea.ErrProgramKilled) {
		err = nil
	}
	return cmp.Or(m.ended, err)
}

// watch is the model of what runs on the terminal. Bubble Tea calls its methods from one goroutine, and read from others.
type watch struct {
	read          func() (*admin.Status, error)
	status        *admin.Status // the last that was read; nil: none yet
	away          error         // why there is none newer
	ended         error         // why it ended, if not well
	width, height int
}

type (
	statusRead struct {
		status *admin.Status
		err    error
	}
	statusDue struct{}
)

func (m *watch) readStatus() tea.Msg {
	s, err := m.read()
	return statusRead{s, err}
}

// Init implements [tea.Model].
func (m *watch) Init() tea.Cmd { return m.readStatus }

// Update implements [tea.Model]. What cannot be read at first ends it, as it ends a status without --watch. Later it only says
// so, and asks on.
func (m *watch) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		if key := msg.String(); key == "q" || key == "ctrl+c" {
			return m, tea.Quit
		}
	case statusDue:
		return m, m.readStatus
	case statusRead:
		if m.away = msg.err; msg.err != nil && m.status == nil {
			m.ended = msg.err
			return m, tea.Quit
		}
		if msg.err == nil {
			m.status = msg.status
		}
		return m, tea.Tick(watchEvery, func(time.Time) tea.Msg { return statusDue{} })
	}
	return m, nil
}

// View implements [tea.Model].
func (m *watch) View() tea.View {
	if m.status == nil {
		return tea.NewView("")
	}
	height := m.height
	var lines []string
	if m.away != nil {
		text := "not read since " + admin.Text(m.status.At) + ": " + printable(explained(m.away))
		lines = append(lines, bold(31, fitted(text, m.width)))
		height--
	}
	v := tea.NewView(strings.Join(append(lines, screen(m.status, m.width, height)...), "\n"))
	v.AltScreen = true
	return v
}

// screen are the lines of a status: its verdict, then what is in trouble first, cut to what the terminal has room for.
func screen(s *admin.Status, width, height int) []string {
	headline := printable(s.Verdict.Headline) + "."
	if text := s.StandbyText(); text != "" {
		headline = text + ". " + headline
	}
	foot := "at " + admin.Text(s.At)
	if s.Oldest != nil {
		foot += fmt.Sprintf("; oldest due call: %d in %s, due %s", s.Oldest.ID, printable(short(s.Oldest.Queue)), admin.Ago(s.At, s.Oldest.DueAt))
	}
	foot += "; q quits"
	sections := []section{points(s.Verdict.Points)}
	for _, p := range []section{queueSection(s), limitSection(s), budgetSection(s), workerSection(s)} {
		if len(p.rows) > 0 {
			sections = append(sections, p)
		}
	}
	lines := []string{headline}
	for i, n := range share(sections, height-3) { // an empty line stands above the foot
		lines = append(lines, sections[i].cut(n)...)
	}
	lines = append(lines, "", foot)
	if height < 4 {
		lines = lines[:1]
	}
	for i := range lines {
		lines[i] = fitted(lines[i], width)
	}
	level := map[admin.Level]int{admin.OK: 32, admin.Note: 33, admin.Problem: 31}[s.Verdict.Level]
	lines[0] = bold(level, lines[0])
	return lines[:min(len(lines), max(0, height))]
}

// bold has a line in a color of the terminal's.
func bold(color int, line string) string { return fmt.Sprintf("\x1b[1;%dm%s\x1b[m", color, line) }

// fitted cuts a line to a width, where a wide character counts twice.
func fitted(line string, width int) string { return ansi.Truncate(line, max(0, width), "…") }

// section is a part of the screen: a head, and rows below it, of one or two lines each.
type section struct {
	head []string
	rows [][]string
}

func (s section) height() int {
	n := len(s.head)
	for _, row := range s.rows {
		n += len(row)
	}
	return n
}

// least is how many lines the section has use for: below, it is left out.
func (s section) least() int { return min(s.height(), len(s.head)+1) }

// cut is the section in n lines. The last tells for how many rows there is no room for.
func (s section) cut(n int) []string {
	if n < s.least() || n == 0 {
		return nil
	}
	lines, whole := slices.Clone(s.head), s.height() <= n
	for i, row := range s.rows {
		if !whole && len(lines)+len(row) > n-1 {
			return append(lines, fmt.Sprintf("… and %d more", len(s.rows)-i))
		}
		lines = append(lines, row...)
	}
	return lines
}

// share gives each section lines of the height, the first of them before others their least, and then all a line more in turn.
func share(sections []section, height int) []int {
	lines := make([]int, len(sections))
	for i, p := range sections {
		if n := p.least(); n <= height {
			lines[i], height = n, height-n
		}
	}
	for given := true; given && height > 0; {
		given = false
		for i, p := range sections {
			if lines[i] > 0 && lines[i] < p.height() && height > 0 {
				lines[i], height, given = lines[i]+1, height-1, true
			}
		}
	}
	return lines
}

// tableSection is a table as a section, below an empty line.
func tableSection[T any](t table[T], rows []T) section {
	if len(rows) == 0 {
		return section{}
	}
	var b bytes.Buffer
	t.print(&b, rows)
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	p := section{head: []string{"", lines[0]}}
	for _, line := range lines[1:] {
		p.rows = append(p.rows, []string{line})
	}
	return p
}

// points are the verdict's, each with what to do about it.
func points(list []admin.Finding) section {
	var p section
	for _, f := range list {
		row := []string{fmt.Sprintf("%-8s %s", f.Level, printable(f.What))}
		if f.Fix != "" {
			row = append(row, fmt.Sprintf("%-8s %s", "", printable(f.Fix)))
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// trouble is how much somebody should look at a limit or a queue: the least first.
type trouble int

const (
	isClosed trouble = iota
	isFull
	callsWait
	none
)

func queueTrouble(q admin.Queue) trouble {
	switch {
	case q.Paused != nil, !q.Configured, q.OutsideHours && q.Due > 0:
		return isClosed
	case len(q.HeldBy) > 0, q.MaxWaiting != nil && q.Waiting >= *q.MaxWaiting:
		return isFull
	case q.Due > 0:
		return callsWait
	}
	return none
}

// limitTrouble is that of a limit in whose queues so many calls are due.
func limitTrouble(l admin.Limit, due int64) trouble {
	switch {
	case l.Idle():
		return none
	case l.State != "open":
		return isClosed
	case l.Room == 0:
		return isFull
	case due > 0:
		return callsWait
	}
	return none
}

func queueSection(s *admin.Status) section {
	queues := slices.SortedStableFunc(slices.Values(s.Queues), func(a, b admin.Queue) int {
		return cmp.Or(cmp.Compare(queueTrouble(a), queueTrouble(b)), cmp.Compare(b.Due, a.Due), cmp.Compare(a.Name, b.Name))
	})
	return tableSection(table[admin.Queue]{"QUEUE,DUE,SCHEDULED,DISPATCHED,RUNNING,FAILED 24H,STATE,LIMITS", func(q admin.Queue) []any {
		state := q.StateText()
		if !q.Configured {
			state = "not in the configuration: its calls wait"
		}
		return []any{short(q.Name), q.Due, q.Scheduled, q.Dispatched, q.Running, q.Failed, state, q.Limits}
	}}, queues)
}

func limitSection(s *admin.Status) section {
	dueIn, due := map[string]int64{}, map[string]int64{}
	for _, q := range s.Queues {
		dueIn[q.Name] = q.Due
	}
	for _, l := range s.Limits {
		for _, queue := range l.Queues {
			due[l.Name] += dueIn[queue]
		}
	}
	limits := slices.SortedStableFunc(slices.Values(s.Limits), func(a, b admin.Limit) int {
		return cmp.Or(cmp.Compare(limitTrouble(a, due[a.Name]), limitTrouble(b, due[b.Name])),
			cmp.Compare(due[b.Name], due[a.Name]), cmp.Compare(a.Name, b.Name))
	})
	return tableSection(table[admin.Limit]{"LIMIT,OCCUPIED,ROOM,DUE,STATE,RATE,QUEUES", func(l admin.Limit) []any {
		return []any{short(l.Name), fmt.Sprint("~", l.Occupied), fmt.Sprint("~", l.Room), due[l.Name], l.StateText(), l.Rate, l.Queues}
	}}, limits)
}

func budgetSection(s *admin.Status) section { return tableSection(budgetTable(), s.Budgets) }

// workerSection is one line: of many workers, which runs what is seldom the question.
func workerSection(s *admin.Status) section {
	var live, running, slots int64
	for _, w := range s.Workers {
		if w.Live {
			live, running, slots = live+1, running+w.Running, slots+int64(w.Slots)
		}
	}
	return section{head: []string{""}, rows: [][]string{{fmt.Sprintf("%s alive, %d of %s in use; %s alive",
		words.Count(live, "worker"), running, words.Count(slots, "slot"), words.Count(int64(len(s.Dispatchers)), "dispatcher"))}}}
}
