// Setups runs the built callq on each set-up of Postgres and Redis that users run:
//
//	go run -C verification ./setups [-short] [-only NAME,...]
//
// Each set-up has servers of its own. `callq migrate up`, two `callq serve` and 1,000 calls under 50 a second meet its fault in
// the middle: a failover, a restart, a slot that moves. Then an oracle judges what the API saw: never more than 50 in any second,
// no call lost, none made twice. It prints a line for each set-up and exits with 1 if one is not as docs/deploying.md says. A
// set-up whose packages cannot be had is left out, which is said; with -short, which CI runs, all must be there.
package main

import (
	"cmp"
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
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/callq/callq/verification/packages"
)

func main() {
	short := flag.Bool("short", false, "run those that CI runs, with fewer calls")
	only := flag.String("only", "", "run these only: beginnings of names, with commas between")
	parallel := flag.Int("parallel", 3, "so many at a time")
	keep := flag.Bool("keep", false, "keep the logs")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	chosen, err := choose(setups(), *short, *only)
	if err == nil {
		err = run(ctx, os.Stdout, chosen, options{short: *short, parallel: *parallel, keep: *keep})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "setups:", err)
		os.Exit(1)
	}
}

type options struct {
	short    bool
	parallel int
	keep     bool
}

// choose returns the set-ups that -short and -only leave.
func choose(all []setup, short bool, only string) ([]setup, error) {
	var names []string
	if only != "" {
		names = strings.Split(only, ",")
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(s setup) bool { return strings.HasPrefix(s.name, name) }) {
			return nil, fmt.Errorf("the name of no set-up begins with %q", name)
		}
	}
	return slices.DeleteFunc(all, func(s setup) bool {
		begins := func(name string) bool { return strings.HasPrefix(s.name, name) }
		return short && !s.short || names != nil && !slices.ContainsFunc(names, begins)
	}), nil
}

// errFailed is returned if a set-up was not as it should be. The table tells which.
var errFailed = errors.New("some set-ups were not as they should be")

// result is what became of one set-up.
type result struct {
	saw     string // the version, and what was seen, in short
	took    time.Duration
	err     error
	missing bool // err says what cannot be had
}

func (r result) String() string {
	switch {
	case r.missing:
		return "NOT RUN"
	case r.err != nil:
		return "WRONG"
	}
	return "ok"
}

func run(ctx context.Context, out io.Writer, chosen []setup, opts options) (err error) {
	if err := holdInMemory(); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "callq-setups-")
	if err != nil {
		return err
	}
	defer func() {
		if opts.keep {
			fmt.Fprintln(os.Stderr, "kept:", temp)
			return
		}
		err = errors.Join(err, os.RemoveAll(temp))
	}()
	if err := os.Chmod(temp, 0o711); err != nil { //nolint:gosec // the users that servers run as pass through it
		return err
	}
	callq := filepath.Join(temp, "callq")
	if text, err := exec.CommandContext(ctx, "go", "build", "-C", "..", "-o", callq, "./cmd/callq").CombinedOutput(); err != nil {
		return fmt.Errorf("build callq: %w\n%s", err, text)
	}
	results := make([]result, len(chosen))
	missing := make([]error, len(chosen))
	for i, s := range chosen { // one after the other: package managers lock
		missing[i] = s.install(ctx)
	}
	places := make(chan struct{}, opts.parallel)
	var all sync.WaitGroup
	for i, s := range chosen {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			results[i] = try(ctx, s, missing[i], &stage{callq: callq, dir: filepath.Join(temp, fmt.Sprint(i)), calls: opts.calls()})
			fmt.Fprintf(os.Stderr, "%s: %s, %.0fs\n", s.name, results[i], results[i].took.Seconds())
		})
	}
	all.Wait()
	if err := printTable(out, chosen, results); err != nil {
		return err
	}
	for _, r := range results {
		if r.err != nil && (opts.short || !r.missing) {
			return errFailed
		}
	}
	return ctx.Err()
}

// holdInMemory has the servers keep their files in /dev/shm, if it has room: there fsync, which callq asks for, takes no time.
func holdInMemory() error {
	const folder, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(folder, &fs) != nil || float64(fs.Bavail)*float64(fs.Bsize) < room {
		return nil
	}
	return os.Setenv("TMPDIR", folder)
}

func (o options) calls() int {
	if o.short {
		return 300
	}
	return 1000
}

// within is how long a set-up may take.
const within = 5 * time.Minute

// try runs one set-up.
func try(ctx context.Context, s setup, missing error, on *stage) (r result) {
	if ctx.Err() != nil {
		return result{err: ctx.Err()}
	}
	if missing != nil {
		return result{err: missing, missing: errors.Is(missing, packages.ErrMissing)}
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	on.name = s.name
	r.err = os.Mkdir(on.dir, 0o711) //nolint:gosec // the users that servers run as pass through it
	if r.err == nil {
		r.saw, r.err = s.run(ctx, on)
	}
	if r.err != nil {
		r.err = fmt.Errorf("%w%s", r.err, on.lastWords())
	}
	on.close()
	r.took = time.Since(begun)
	return r
}

// printTable prints a line for each set-up, then what was wrong.
func printTable(out io.Writer, chosen []setup, results []result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "set-up\tversion\tworks\t\tsettings\ttime\tsaw")
	for i, s := range chosen {
		r := results[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.0fs\t%s\n", s.name, s.version, cmp.Or(s.works, "yes"), r, s.settings, r.took.Seconds(), r.saw)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i, s := range chosen {
		if results[i].err != nil {
			fmt.Fprintf(out, "%s: %s: %v\n", s.name, results[i], results[i].err)
		}
	}
	return nil
}
