// Alerts stages a fault for each alert of deploy/grafana, and has promtool say which alerts fire of what callq exports meanwhile:
//
//	go run -C verification ./servers go run ./alerts -promtool PATH [-only CallqLimitFull,...] [-keep FILE]
//
// Each fault has a built callq with a database and a Redis of its own. /metrics of its processes is scraped twice before the
// fault, and twice in it. A rule test of promtool goes on from there: gauges stay, counters grow as they were seen to grow. So hours pass in a
// moment, and an alert on a metric or a label that callq does not export does not fire. Exactly the alerts must fire that the table
// names, with their labels; where nothing is wrong, none.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/callq/callq/deploy/grafana"
)

// atOnce is how many faults are staged at a time: they mostly wait.
const atOnce = 4

func main() {
	var s suite
	only := flag.String("only", "", "stage the faults of these alerts only")
	flag.StringVar(&s.promtool, "promtool", "promtool", "the program")
	flag.StringVar(&s.keep, "keep", "", "also write the rule test to this file")
	flag.Parse()
	redis.SetLogger(&logging.VoidLogger{}) // it would log each dial of what was stopped
	s.faults = faults()
	if *only != "" {
		names := strings.Split(*only, ",")
		s.faults = slices.DeleteFunc(s.faults, func(f fault) bool { return !slices.Contains(names, f.alert) })
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	err := covered(faults())
	if err == nil {
		err = s.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "alerts:", err)
		os.Exit(1)
	}
}

// covered returns an error unless each alert has a fault in which it fires, and one has none.
func covered(all []fault) error {
	var missing []string
	for _, a := range grafana.Alerts {
		if !slices.ContainsFunc(all, func(f fault) bool {
			return f.alert == a.Name && slices.ContainsFunc(f.fires, func(fired string) bool { return name(fired) == a.Name })
		}) {
			missing = append(missing, a.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("no fault is staged for %s", strings.Join(missing, ", "))
	}
	if !slices.ContainsFunc(all, func(f fault) bool { return f.alert == "" && len(f.fires) == 0 }) {
		return errors.New("nothing is scraped where all is well")
	}
	return nil
}

// suite is one run.
type suite struct {
	promtool, keep string
	faults         []fault
	temp           string // a folder
	callq          string // the built program
}

func (s *suite) run(ctx context.Context) (err error) {
	if os.Getenv("TEST_DATABASE_URL") == "" {
		return errors.New("TEST_DATABASE_URL is not set: go run ./servers sets it")
	}
	if s.temp, err = os.MkdirTemp(os.Getenv("TEST_TMPDIR"), "callq-alerts-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.temp)) }()
	s.callq = filepath.Join(s.temp, "callq")
	if text, err := exec.CommandContext(ctx, "go", "build", "-C", "..", "-o", s.callq, "./cmd/callq").CombinedOutput(); err != nil {
		return fmt.Errorf("build callq: %w\n%s", err, text)
	}
	tests, failures, all := make([]string, len(s.faults)), make([]error, len(s.faults)), make([]scrapes, len(s.faults))
	var staged sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for i, f := range s.faults {
		staged.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			var err error
			if all[i], err = s.stage(ctx, i, f); err != nil {
				failures[i] = fmt.Errorf("stage %q: %w", f.name, err)
				return
			}
			tests[i] = ruleTest(f, all[i])
		})
	}
	staged.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	return errors.Join(s.exported(all), s.judge(ctx, tests))
}

var selector = regexp.MustCompile(`(callq_\w+)(?:\{(\w+="\w+")\})?`)

// exported returns an error unless each selector of the alerts whose faults were staged has met a series. That an alert fires does
// not say so of what would keep it silent.
func (s *suite) exported(all []scrapes) error {
	var missing []string
	for _, a := range grafana.Alerts {
		if !slices.ContainsFunc(s.faults, func(f fault) bool { return f.alert == a.Name }) {
			continue
		}
		for _, m := range selector.FindAllStringSubmatch(a.Expr, -1) {
			if !slices.ContainsFunc(all, func(of scrapes) bool { return of.met(m[1], m[2]) }) {
				missing = append(missing, a.Name+": "+m[0])
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("no process has exported\n%s", strings.Join(missing, "\n"))
	}
	return nil
}

// judge has promtool run the tests, which must all hold.
func (s *suite) judge(ctx context.Context, tests []string) error {
	file := filepath.Join(s.temp, "test.yaml")
	text := "rule_files: [alerts.yaml]\nevaluation_interval: 1m\ntests:\n" + strings.Join(tests, "")
	err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.WriteFile(filepath.Join(s.temp, "alerts.yaml"), []byte(grafana.Rules()), 0o600))
	if s.keep != "" {
		err = errors.Join(err, os.WriteFile(s.keep, []byte(text), 0o600))
	}
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, s.promtool, "test", "rules", file).CombinedOutput(); err != nil {
		return fmt.Errorf("promtool test rules: %w\n%s", err, out)
	}
	for _, f := range s.faults {
		fmt.Printf("%s: %s\n", f.name, cmp.Or(strings.Join(f.fires, ", "), "no alert"))
	}
	return nil
}
