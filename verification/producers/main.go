// Producers runs real ORMs and drivers, at pinned versions, as producers of call_queue:
//
//	go run -C verification ./servers go run ./producers [-short] [-only NAME,...]
//
// Each gets a database of its own, a login in callq_producer, and a `callq serve` towards a local API. Each folder
// holds the smallest program of one ORM: it takes DATABASE_URL, API_URL and the name of a step, and prints a line of
// JSON. What became of the step is judged from the tables and from what the API saw: no call is made twice, lost or
// blocked. It prints a table, and exits with 1 if a step is not as it should be. An ORM whose packages cannot be had is
// left out, which is said. Two must run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
)

// producer is an ORM or driver, and how its program is started.
type producer struct {
	name  string // the folder too
	short bool   // -short runs it
	make  maker
}

func producers() []producer {
	return []producer{
		{"gorm", true, goProgram},
		{"django", true, debianScript("python3", "producer.py")},
		{"sqlalchemy", true, debianScript("python3", "producer.py")},
		{"activerecord", true, debianScript("ruby", "producer.rb")},
		{"drizzle", true, nodeScript},
		{"prisma", false, nodeScript},
		{"typeorm", false, nodeScript},
		{"sequelize", false, nodeScript},
		{"knex", false, nodeScript},
		{"kysely", false, nodeScript},
		{"mikroorm", false, nodeScript},
		{"pgx", false, goProgram},
		{"bun", false, goProgram},
		{"sequel", false, debianScript("ruby", "producer.rb")},
		{"dbixclass", false, debianScript("perl", "producer.pl")},
		{"peewee", false, debianScript("python3", "producer.py")},
		{"pony", false, debianScript("python3", "producer.py")},
		{"doctrine", false, debianScript("php", "producer.php")},
		{"ent", false, generatedGo},
		{"hibernate", false, javaProgram},
	}
}

func main() {
	short := flag.Bool("short", false, "run those that CI runs")
	only := flag.String("only", "", "run these only: names with commas between")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	chosen, err := choose(producers(), *short, *only)
	if err == nil {
		err = run(ctx, os.Stdout, chosen)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "producers:", err)
		os.Exit(1)
	}
}

// choose returns the producers that -short and -only leave.
func choose(all []producer, short bool, only string) ([]producer, error) {
	var names []string
	if only != "" {
		names = strings.Split(only, ",")
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(p producer) bool { return p.name == name }) {
			return nil, fmt.Errorf("no producer is called %q", name)
		}
	}
	return slices.DeleteFunc(all, func(p producer) bool {
		return short && !p.short || names != nil && !slices.Contains(names, p.name)
	}), nil
}

// errFailed is returned if a step was not as it should be. The table tells which.
var errFailed = errors.New("some steps were not as they should be")

func run(ctx context.Context, out io.Writer, chosen []producer) (err error) {
	temp, err := os.MkdirTemp(os.Getenv("TEST_TMPDIR"), "callq-producers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	callq := filepath.Join(temp, "callq")
	if text, err := exec.CommandContext(ctx, "go", "build", "-C", "..", "-o", callq, "./cmd/callq").CombinedOutput(); err != nil {
		return fmt.Errorf("build callq: %w\n%s", err, text)
	}
	postgres, err := startPostgresAddress(ctx, os.Getenv("TEST_DATABASE_URL"))
	if err != nil {
		return err
	}
	defer postgres.close()

	failed, ran := false, 0
	var results []result
	for _, p := range chosen {
		r := try(ctx, p, callq, postgres, temp)
		for _, s := range r.steps {
			failed = failed || s.err != nil
		}
		if r.missing == nil {
			ran++
		}
		results = append(results, r)
		fmt.Fprintf(os.Stderr, "%s: %s\n", p.name, r.summary())
		if ctx.Err() != nil {
			break
		}
	}
	if err := printTable(out, results); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed {
		return errFailed
	}
	if ran < min(fewest, len(chosen)) {
		return fmt.Errorf("%d of %d ran, which are too few: the packages of the others cannot be had", ran, len(chosen))
	}
	return nil
}

// fewest are how many have to run.
const fewest = 2

// result is what became of one producer.
type result struct {
	name, version string
	steps         []stepResult
	missing       error // its packages cannot be had: no step was run
}

// stepResult is what became of one step.
type stepResult struct {
	name string
	saw  string // what the program said, in short
	err  error
}

func (r *result) summary() string {
	if r.missing != nil {
		return "NOT RUN: " + r.missing.Error()
	}
	var bad []string
	for _, s := range r.steps {
		if s.err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", s.name, s.err))
		}
	}
	if bad == nil {
		return "ok"
	}
	return strings.Join(bad, "; ")
}

// printTable prints a line for each producer and a column for each step, then what was wrong.
func printTable(out io.Writer, results []result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	header := []string{"producer", "version"}
	for _, s := range steps() {
		header = append(header, s.name)
	}
	fmt.Fprintln(w, strings.Join(append(header, "at the end"), "\t"))
	for _, r := range results {
		if r.missing != nil {
			continue
		}
		cells := []string{r.name, r.version}
		for _, name := range append(stepNames(), atTheEnd) {
			cell := ""
			for _, s := range r.steps {
				if s.name == name {
					cell = s.saw
					if s.err != nil {
						cell = "WRONG"
					}
				}
			}
			cells = append(cells, cell)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		if r.missing != nil {
			fmt.Fprintf(out, "%s: %s\n", r.name, r.summary())
		}
		for _, s := range r.steps {
			if s.err != nil {
				fmt.Fprintf(out, "%s, %s: %v\n", r.name, s.name, s.err)
			}
		}
	}
	return nil
}
