// Bench measures callq beside other queues and raw SQL: inserts one by one and in bulk, and the drain
// of calls that do nothing.
//
// All run in turn, on one Postgres and one Redis that it starts itself, each measurement on a fresh
// database. What is written in Go runs in this process, what is written for Node.js in one of its own.
// What it promises is a comparison: the machine's own speed, and whatever else it does, weigh on all.
// docs/performance.md says what is measured and what is not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is the program: figures go to stdout, progress to stderr. A signal ends it, servers and all.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	ctx, cancel := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var s sizes
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.calls, "n", 100_000, "calls to insert in bulk and to drain")
	flags.IntVar(&s.singles, "singles", 20_000, "calls to insert one by one")
	flags.IntVar(&s.rounds, "rounds", 5, "rounds that count; one more, before them, warms up")
	flags.StringVar(&s.only, "only", "", "measure only these peers, with commas between; with -reads, one layout")
	claims := flags.Bool("claims", false, "measure claims instead, among few and many calls and keys")
	budgets := flags.Bool("budgets", false, "measure draws on budgets instead, beside redis_rate")
	paced := flags.Bool("paced", false, "measure what HTTP calls cost at real rates instead, beside River and a bare client")
	s.rates = rates{100, 500, 2000}
	hour := flags.Bool("hour", false, "measure an hour of HTTP calls instead, with retention, and with a snapshot held in its middle third")
	flags.Var(&s.rates, "rates", "with -paced: how many calls come a second; with -hour: 500, unless it is given")
	flags.DurationVar(&s.paceFor, "for", 10*time.Second, "with -paced: how long each is measured; with -hour: 1h, unless it is given")
	flags.IntVar(&s.top, "top", 0, "say after a drain, or with -paced, -limited or -hour, which statements took Postgres the longest, so many of them")
	flags.IntVar(&s.ended, "ended", 0, "measure callq's drain beside tables in which so many calls have ended instead")
	as := flags.String("as", "", "what this program starts of itself: River's worker, or the bare client with a URL and a rate")
	limited := flags.Bool("limited", false, "measure HTTP calls that wait under a limit instead, beside other queues with limiters")
	flags.BoolVar(&s.short, "short", false, "with -limited: 300 calls under 100 a second and 1,000 under 500, in one round")
	flags.Float64Var(&s.part, "part", 1, "with -limited: the part of the calls that waits")
	reads := flags.Bool("reads", false, "measure the commands that only read instead, among 1,000,000 calls (-n), 7 times each (-rounds)")
	output := flags.String("o", "table", "table, or json: every figure of every round")
	flags.StringVar(&s.profile, "cpuprofile", "", "write a CPU profile of the last drain to this file")
	flags.StringVar(&s.plot, "plot", "", "draw callq's ratios to the others into this SVG file; with -limited, CPU against exactness")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *output != "table" && *output != "json" {
		return fmt.Errorf("-o is %q; it may be table or json", *output)
	}
	if *as != "" {
		return s.runAs(ctx, *as, flags.Args())
	}
	debug.SetGCPercent(400) // as callq's daemons have it, for whatever runs in this process
	settings := postgresSettings()
	check := s.check
	switch {
	case *reads:
		s.forReads(flags)
		check = s.checkReads
		settings["max_wal_size"] = "512MB" // what is filled in need not lie on the disk twice
	case *paced:
		if !given(flags, "rounds") {
			s.rounds = 3
		}
		check = s.checkPaced
		settings = pacedSettings()
	case *hour:
		s.forHour(flags)
		check = s.checkHour
		settings = hourSettings()
	case *limited:
		if !given(flags, "rounds") {
			s.rounds = 3
			if s.short {
				s.rounds = 1
			}
		}
		check = s.checkLimited
		settings = pacedSettings()
	case s.top > 0:
		settings = pacedSettings()
	}
	if err := check(); err != nil {
		return err
	}
	servers, err := startServers(ctx, settings)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.stop()) }()

	b := bench{sizes: s, servers: servers, say: stderr}
	switch {
	case *claims:
		return b.claims(ctx, stdout)
	case *budgets:
		return b.budgets(ctx, stdout)
	case s.ended > 0:
		return b.long(ctx, stdout)
	}
	switch {
	case *reads:
		all, err := b.reads(ctx)
		return show(stdout, *output, all, err, writeTold)
	case *paced:
		all, err := b.paced(ctx)
		return show(stdout, *output, all, err, writePaced)
	case *hour:
		all, end, err := b.hour(ctx)
		if err != nil {
			return err
		}
		return errors.Join(show(stdout, *output, all, nil, func(w io.Writer, all []hourSample) error { return writeHour(w, all, end) }), end.err())
	case *limited:
		all, err := b.limited(ctx)
		err = errors.Join(err, show(stdout, *output, all, nil, writeLimited))
		if err != nil || s.plot == "" {
			return err
		}
		return writeLimitedPlot(s.plot, all)
	default:
		all, err := b.all(ctx)
		if err := show(stdout, *output, all, err, writeTable); err != nil || s.plot == "" {
			return err
		}
		return writePlot(s.plot, all)
	}
}
