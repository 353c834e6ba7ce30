package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// peer is a system with its name.
type peer struct {
	name            string
	postgres, redis bool // what it uses
	node            bool // it runs in Node.js
	open            func(ctx context.Context, databaseURL, redisURL string) (system, error)
}

func peers() []peer {
	return []peer{
		{name: "callq", postgres: true, redis: true, open: openCallq},
		{name: "River", postgres: true, open: openRiver},
		{name: "graphile-worker", postgres: true, node: true, open: openGraphile},
		{name: "pg-boss", postgres: true, node: true, open: openPgBoss},
		{name: "Asynq", redis: true, open: openAsynq},
		{name: "raw SQL", postgres: true, open: openSQL},
	}
}

// system is a peer on a database of its own.
type system interface {
	// insertSingles inserts n calls, one each time, by so many producers as producers says.
	insertSingles(ctx context.Context, n int) error
	// insertBulk inserts n calls, as many each time as is best for the peer.
	insertBulk(ctx context.Context, n int) error
	// start starts the workers, whose handler is handled.
	start(ctx context.Context, handled func()) (stop func() error, err error)
	// allDone says whether the job table has nothing left to do. It is asked once all were handled.
	allDone(ctx context.Context) (bool, error)
	// check says what is wrong with the tables when so many were inserted and so many are done.
	check(ctx context.Context, inserted, done int) error
	// vacuum readies the tables for the drain.
	vacuum(ctx context.Context) error
	close()
}

// elsewhere is a system that runs in a process of its own.
type elsewhere interface{ pid() int }

// chosen are the names that -only gives, nil for all.
func (s sizes) chosen() []string {
	if s.only == "" {
		return nil
	}
	return strings.Split(s.only, ",")
}

// peers are those to measure.
func (s sizes) peers() []peer {
	chosen := s.chosen()
	return slices.DeleteFunc(peers(), func(p peer) bool { return chosen != nil && !slices.Contains(chosen, p.name) })
}

// checkPeers says which name of -only no peer has.
func (s sizes) checkPeers() error {
	var names []string
	for _, p := range peers() {
		names = append(names, p.name)
	}
	for _, name := range s.chosen() {
		if !slices.Contains(names, name) {
			return fmt.Errorf("-only names %q; it may name %s", name, strings.Join(names, ", "))
		}
	}
	if s.plot != "" && (len(s.peers()) < 2 || s.peers()[0].name != "callq") {
		return errors.New("-plot draws callq beside others: -only must name it and one of them")
	}
	return nil
}

// ready installs what peers in Node.js need. Where it cannot, they are left out, unless they were asked for.
func (b *bench) ready(ctx context.Context) ([]peer, error) {
	list := b.peers()
	inNode := func(p peer) bool { return p.node }
	if !slices.ContainsFunc(list, inNode) {
		return list, nil
	}
	err := installNode(ctx, b.say)
	if err == nil {
		return list, nil
	}
	if b.only != "" || ctx.Err() != nil {
		return nil, err
	}
	fmt.Fprintf(b.say, "graphile-worker and pg-boss are left out: %v\n", err)
	return slices.DeleteFunc(list, inNode), nil
}

// byProducers has so many producers insert the calls 1 to n.
func byProducers(count, n int, insert func(n int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	failures := make([]error, count)
	for i := range count {
		wg.Go(func() {
			for failures[i] == nil {
				call := int(next.Add(1))
				if call > n {
					return
				}
				failures[i] = insert(call)
			}
		})
	}
	wg.Wait()
	return errors.Join(failures...)
}

// inBatches inserts n calls, bulk each time.
func inBatches(n int, insert func(first, count int) error) error {
	for first := 0; first < n; first += bulk {
		if err := insert(first, min(bulk, n-first)); err != nil {
			return err
		}
	}
	return nil
}
