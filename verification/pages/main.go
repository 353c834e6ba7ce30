// Pages tries the pages of a running `callq serve` in a real browser, over a full database:
//
//	go run -C verification ./servers go run ./pages [-short] [-screenshots DIR]
//
// It fills a million calls, with -short 20,000. It opens each kind of page: that it answers, that the browser has nothing to complain
// of, that axe-core finds no serious barrier, and that a phone shows what matters. It presses each kind of button, and reads back from
// the tables what that did. It prints what answers and watched pages take; those figures fail nothing that could be noise.
// Chromium is Debian's, axe-core is npm's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	var s suite
	short := flag.Bool("short", false, "as CI runs it: 20,000 calls, and each figure taken once")
	flag.StringVar(&s.screenshots, "screenshots", "", "write pictures of the pages into this folder")
	flag.Parse()
	s.calls, s.rounds, s.watched = 1_000_000, 5, time.Minute // which has one of each: what limits of a minute let go comes in bursts
	if *short {
		s.calls, s.rounds, s.watched = 20_000, 3, 5*time.Second
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := s.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
		os.Exit(1)
	}
}

// suite is one run.
type suite struct {
	calls       int
	rounds      int           // of each figure; the median counts
	watched     time.Duration // how long each count of viewers is measured
	screenshots string        // a folder; empty: no pictures

	*world
	browser *browser
	faults  []string
}

// fault notes what is not as it should be. The run goes on, and fails at its end.
func (s *suite) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.faults = append(s.faults, text)
	fmt.Println("FAULT:", text)
}

func (s *suite) run(ctx context.Context) (err error) {
	if os.Getenv("TEST_DATABASE_URL") == "" {
		return errors.New("TEST_DATABASE_URL is not set: go run ./servers sets it")
	}
	temp, err := os.MkdirTemp(os.Getenv("TEST_TMPDIR"), "callq-pages-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	if s.screenshots != "" {
		if s.screenshots, err = filepath.Abs(s.screenshots); err != nil {
			return err
		}
	}
	if s.browser, err = startBrowser(ctx, temp); err != nil {
		return err
	}
	defer s.browser.close()
	if s.world, err = newWorld(ctx, temp); err != nil {
		return err
	}
	defer s.close()
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"fill", s.fill},
		{"pictures", s.pictures},
		{"visits", s.visits},
		{"viewers", s.viewers},
		{"keys and live pages", s.live},
		{"buttons", s.buttons},
	} {
		begun := time.Now()
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("%s: %.0f s\n\n", step.name, time.Since(begun).Seconds())
	}
	if s.faults != nil {
		return fmt.Errorf("%d faults:\n%s", len(s.faults), strings.Join(s.faults, "\n"))
	}
	return nil
}
