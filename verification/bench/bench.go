package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	producers   = 8    // of the inserts one by one
	bulk        = 5000 // calls in one bulk insert, but for peers that are quicker with fewer
	slots       = 2000 // calls that a worker runs at once
	conns       = 20   // Postgres connections of a pool
	drainWithin = 5 * time.Minute
	askEvery    = 2 * time.Millisecond // whether all are done, once the last handler has run
)

// sizes is how much is measured.
type sizes struct {
	calls, singles, rounds int
	only                   string        // names of peers, with commas between; "": all
	rates                  rates         // at which calls come, with -paced
	paceFor                time.Duration // for which each is measured
	top                    int           // of the statements to say
	profile                string        // where a profile of the last drain goes; "": nowhere
	ended                  int           // calls before the drain; 0: another measure
	plot                   string        // where a picture of the ratios goes; "": nowhere
	short                  bool          // with -limited: few calls
	part                   float64       // with -limited: of the calls
}

func (s sizes) check() error {
	if s.calls < 1 || s.singles < producers || s.rounds < 1 {
		return fmt.Errorf("-n and -rounds must be at least 1, and -singles at least %d", producers)
	}
	return s.checkPeers()
}

// bench is one run of everything.
type bench struct {
	sizes
	servers *servers
	say     io.Writer
}

// all measures every peer in every round; who is first changes with the round. Round 0 warms up.
func (b *bench) all(ctx context.Context) ([]figure, error) {
	var figures []figure
	list, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	for round := range b.rounds + 1 {
		for i := range list {
			p := list[(i+round)%len(list)]
			measured, err := b.measure(ctx, p)
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", p.name, err)
			}
			for _, f := range measured {
				f.Round, f.Peer = round, p.name
				f.keepUsed(p)
				fmt.Fprintf(b.say, "round %d  %-15s  %-13s  %8.0f/s\n", round, p.name, f.Measure, f.PerSecond)
				if round > 0 {
					figures = append(figures, f)
				}
			}
		}
	}
	return figures, nil
}

// measure is one peer's part of a round.
func (b *bench) measure(ctx context.Context, p peer) (figures []figure, err error) {
	parts := []func(context.Context, system) ([]figure, error){b.oneByOne, b.bulkAndDrain}
	for _, part := range parts {
		err := b.servers.withDatabase(ctx, func(url string) error {
			s, err := p.open(ctx, url, b.servers.redisURL())
			if err != nil {
				return fmt.Errorf("open: %w", err)
			}
			defer s.close()
			measured, err := part(ctx, s)
			figures = append(figures, measured...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return figures, nil
}

func (b *bench) oneByOne(ctx context.Context, s system) ([]figure, error) {
	f, err := b.timed(ctx, s, "single insert", b.singles, func() error { return s.insertSingles(ctx, b.singles) })
	if err != nil {
		return nil, err
	}
	return []figure{f}, s.check(ctx, b.singles, 0)
}

func (b *bench) bulkAndDrain(ctx context.Context, s system) ([]figure, error) {
	inserted, err := b.timed(ctx, s, "bulk insert", b.calls, func() error { return s.insertBulk(ctx, b.calls) })
	if err != nil {
		return nil, err
	}
	if err := s.vacuum(ctx); err != nil {
		return nil, fmt.Errorf("vacuum: %w", err)
	}
	if err := b.servers.checkpoint(ctx); err != nil {
		return nil, err
	}
	drained, err := b.drain(ctx, s)
	return []figure{inserted, drained}, err
}

// drain is from the start of the workers until the job table says that all is done: a handler
// that has run is not yet a call that is recorded. The stop is not counted.
func (b *bench) drain(ctx context.Context, s system) (figure, error) {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	var handled atomic.Int64
	allHandled := make(chan struct{})
	if b.top > 0 {
		if err := b.countStatements(ctx); err != nil {
			return figure{}, err
		}
	}
	var stop func() error
	f, err := b.timed(ctx, s, "drain", b.calls, func() error {
		return profiled(b.profile, func() (err error) {
			stop, err = s.start(ctx, func() {
				if handled.Add(1) == int64(b.calls) {
					close(allHandled)
				}
			})
			if err != nil {
				return fmt.Errorf("start: %w", err)
			}
			return awaitDone(ctx, allHandled, s)
		})
	})
	if stop != nil {
		err = errors.Join(err, stop())
	}
	if err != nil {
		return f, fmt.Errorf("drain, %d of %d handled: %w", handled.Load(), b.calls, err)
	}
	if n := int(handled.Load()); n != b.calls {
		return f, fmt.Errorf("drain: %d calls were handled %d times", b.calls, n)
	}
	if b.top > 0 {
		if err := b.sayTop(ctx, float64(b.calls)); err != nil {
			return f, err
		}
	}
	return f, s.check(ctx, b.calls, b.calls)
}

func awaitDone(ctx context.Context, allHandled <-chan struct{}, s system) error {
	select {
	case <-allHandled:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		done, err := s.allDone(ctx)
		if done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// timed measures do, in which a system handles n calls.
func (b *bench) timed(ctx context.Context, s system, measure string, n int, do func() error) (figure, error) {
	runtime.GC() // what came before is not to be paid for here
	before, err := b.servers.read(ctx, s)
	if err != nil {
		return figure{}, err
	}
	begun := time.Now()
	if err := do(); err != nil {
		return figure{}, err
	}
	took := time.Since(begun)
	after, err := b.servers.read(ctx, s)
	if err != nil {
		return figure{}, err
	}
	f := after.since(before, n)
	f.Measure, f.Calls = measure, n
	f.Seconds, f.PerSecond = took.Seconds(), float64(n)/took.Seconds()
	return f, nil
}
