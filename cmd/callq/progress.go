package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

const (
	progressAfter = time.Second // what ends sooner shows no progress
	progressEvery = 250 * time.Millisecond
	barWidth      = 20
	eraseLine     = "\r" + ansi.EraseEntireLine
)

// report tells that of a step so much is done. What is done of how many is 0 where it cannot be counted.
type report = func(step string, done, of int64)

// live runs a command's work. Once that has taken a second, a line on stderr shows its progress until it ends, if stderr is a
// terminal. What else is written to stderr meanwhile appears above the line.
func (a *app) live(p progress, work func(report) error) error {
	stderr := a.stderr
	if !isTerminal(stderr) || a.env["TERM"] == "dumb" {
		return work(func(string, int64, int64) {})
	}
	line := startLine(stderr, p, func() int { return terminalWidth(stderr) })
	a.stderr = line
	defer func() { line.end(); a.stderr = stderr }()
	return work(line.report)
}

func terminalWidth(stream any) int {
	if f, ok := stream.(*os.File); ok {
		if width, _, err := term.GetSize(f.Fd()); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// progress is how far a command is. It takes the time as an argument, and writes nothing.
type progress struct {
	what  string // it does
	about bool   // of is an estimate

	begun    time.Time
	step     string // what it does now, if it has steps
	done, of int64  // 0: not known

	from  int64     // of the step was done, when its first report came
	since time.Time // then: what came before is no measure of how long the rest takes
}

func (p *progress) report(now time.Time, step string, done, of int64) {
	if p.since.IsZero() || step != p.step {
		p.step, p.from, p.since = step, done, now
	}
	p.done, p.of = done, of
}

// line is the progress in one line: how much is done, of how many and how long is left, as far as that is known, or else how
// long it has taken.
func (p *progress) line(now time.Time) string {
	text := p.what
	if p.step != "" {
		text += ": " + p.step
	}
	if p.of <= 0 || p.done >= p.of && p.about { // there was more than was estimated
		if p.done > 0 {
			text += "  " + words.Number(p.done)
		}
		return fmt.Sprintf("%s … %.0f s", text, now.Sub(p.begun).Truncate(time.Second).Seconds())
	}
	share := min(1, float64(p.done)/float64(p.of))
	full := int(share * barWidth)
	about := ""
	if p.about {
		about = "about "
	}
	text += fmt.Sprintf("  %s%s  %s of %s%s", strings.Repeat("█", full), strings.Repeat("░", barWidth-full),
		words.Number(p.done), about, words.Number(p.of))
	if did := p.done - p.from; did > 0 && p.done < p.of {
		left := time.Duration(float64(now.Sub(p.since)) * float64(p.of-p.done) / float64(did))
		text += fmt.Sprintf(", about %s left", admin.About(max(left, time.Second)))
	}
	return text
}

// liveLine is the line on the terminal. A writer to it writes above the line.
type liveLine struct {
	to    io.Writer
	width func() int
	stop  chan struct{}
	shows sync.WaitGroup

	mu       sync.Mutex
	progress progress
	shown    bool
}

// startLine shows the progress from a second on, until end.
func startLine(to io.Writer, p progress, width func() int) *liveLine {
	p.begun = time.Now()
	l := &liveLine{to: to, width: width, stop: make(chan struct{}), progress: p}
	l.shows.Go(l.show)
	return l
}

func (l *liveLine) report(step string, done, of int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress.report(time.Now(), step, done, of)
}

func (l *liveLine) show() {
	for wait := progressAfter; ; wait = progressEvery {
		select {
		case <-l.stop:
			return
		case <-time.After(wait):
		}
		l.mu.Lock()
		text := ansi.Truncate(l.progress.line(time.Now()), l.width()-1, "…") // in the last column some terminals begin a new line
		_, _ = io.WriteString(l.to, eraseLine+text)
		l.shown = true
		l.mu.Unlock()
	}
}

// Write implements [io.Writer]. It takes whole lines.
func (l *liveLine) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.erase()
	return l.to.Write(text)
}

func (l *liveLine) erase() {
	if l.shown {
		_, _ = io.WriteString(l.to, eraseLine)
		l.shown = false
	}
}

// end clears the line.
func (l *liveLine) end() {
	close(l.stop)
	l.shows.Wait()
	l.erase()
}
