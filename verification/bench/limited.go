package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/verification/fakeapi"
)

// How calls wait under a limit, and who makes them.
const (
	limitedWindow  = time.Second // of every limit
	limitedWorkers = 4           // processes
	limitedSlots   = 25          // of a worker whose peer has to be told; 100 in all, of which 1,000/s needs 20
	limitedAsk     = 100 * time.Millisecond
	limitedSlack   = time.Minute // for a peer to end, beside limitedTimes of what the limit takes
	limitedTimes   = 20          // a limiter that turns most calls away for seconds uses a twelfth
)

// load is what waits when the workers start.
type load struct{ calls, rate int }

func (l load) String() string { return fmt.Sprintf("%d calls under %d/s", l.calls, l.rate) }

// limitedLoads are those to measure: all of it, a part, or little.
func (s sizes) limitedLoads() []load {
	if s.short {
		return []load{{300, 100}, {1000, 500}}
	}
	loads := []load{{5000, 100}, {20_000, 1000}}
	for i := range loads {
		loads[i].calls = max(1, int(float64(loads[i].calls)*s.part))
	}
	return loads
}

// limitedPeer makes HTTP calls under a limit, in processes of its own.
type limitedPeer struct {
	name            string
	postgres, redis bool // what it uses
	node            bool // it runs in Node.js
	open            func(ctx context.Context, p pacedPlace) (limitedSystem, error)
}

// limitedSystem is a peer that is ready.
type limitedSystem interface {
	// insert adds the calls 1 to n. Call n requests the API's /n.
	insert(ctx context.Context, n int) error
	// start starts the worker processes, and dispatchers where the peer has them.
	start(ctx context.Context) (processes, error)
	// left is how many calls the peer has not recorded as done.
	left(ctx context.Context) (int, error)
	// runs is how often a handler ran, once the processes have ended.
	runs(ctx context.Context, ended processes) (int, error)
	close()
}

// limitedFigure is how a peer did under a limit. CPU is in µs a finished call, and includes what starting the processes took.
type limitedFigure struct {
	Round       int      `json:"round"`
	Rate        int      `json:"rate"`
	Calls       int      `json:"calls"`
	Peer        string   `json:"peer"`
	Worst       float64  `json:"worst_window"` // most arrivals in a window, divided by the limit
	Use         float64  `json:"use"`          // share of what the limit allows from the first arrival to the last
	Runs        float64  `json:"runs"`         // of a handler, a call
	CPU         float64  `json:"cpu_us"`       // the sum of what follows
	Workers     float64  `json:"workers_us"`
	Dispatchers float64  `json:"dispatchers_us"`
	Postgres    float64  `json:"postgres_us"`
	Redis       float64  `json:"redis_us"`
	Statements  *float64 `json:"statements"` // nil: it uses no Postgres
	WALBytes    *float64 `json:"wal_bytes"`
	Seconds     float64  `json:"seconds"` // from the start of the processes until the last call has arrived
	Requests    int      `json:"requests"`
	Unfinished  int      `json:"unfinished"`
}

func (s sizes) checkLimited() error {
	if s.rounds < 1 || s.part <= 0 || s.part > 1 {
		return errors.New("-rounds must be at least 1, and -part above 0 and at most 1")
	}
	var names []string
	for _, p := range limitedPeers() {
		names = append(names, p.name)
	}
	for _, name := range s.chosen() {
		if !slices.Contains(names, name) {
			return fmt.Errorf("-only names %q; it may name %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

// readyLimited are the peers to measure. Those in Node.js are left out where it cannot be had, unless they were asked for.
func (b *bench) readyLimited(ctx context.Context) ([]limitedPeer, error) {
	chosen := b.chosen()
	list := slices.DeleteFunc(limitedPeers(), func(p limitedPeer) bool { return chosen != nil && !slices.Contains(chosen, p.name) })
	inNode := func(p limitedPeer) bool { return p.node }
	if !slices.ContainsFunc(list, inNode) {
		return list, nil
	}
	err := installNode(ctx, b.say)
	if err == nil {
		return list, nil
	}
	if chosen != nil || ctx.Err() != nil {
		return nil, err
	}
	fmt.Fprintf(b.say, "the peers in Node.js are left out: %v\n", err)
	return slices.DeleteFunc(list, inNode), nil
}

// limited measures every peer under every limit, in every round; who is first changes with the round. A whole run takes
// long, so where one fails, what was measured before is returned too.
func (b *bench) limited(ctx context.Context) (all []limitedFigure, err error) {
	list, err := b.readyLimited(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "callq-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	place := pacedPlace{callq: filepath.Join(dir, "callq"), dir: dir, redis: b.servers.redisURL()}
	if err := b.buildCallq(ctx, place.callq); err != nil {
		return nil, err
	}
	busy, err := os.ReadFile("/proc/loadavg")
	if err == nil { // elsewhere than on Linux it is left unsaid
		fmt.Fprintf(b.say, "load at the start: %s", busy)
	}
	for round := range b.rounds {
		for _, l := range b.limitedLoads() {
			for i := range list {
				p := list[(i+round)%len(list)]
				f, err := b.limit(ctx, p, place, l)
				if err != nil {
					return all, fmt.Errorf("%s, %v: %w", p.name, l, err)
				}
				f.Round = round + 1
				fmt.Fprintf(b.say, "round %d  %v  %-26s  worst %.3f  use %3.0f%%  %6.0f µs  %5.1f s\n",
					f.Round, l, p.name, f.Worst, 100*f.Use, f.CPU, f.Seconds)
				all = append(all, f)
			}
		}
	}
	return all, nil
}

// limit is one peer's turn under one limit, on a fresh database and before an API of its own.
func (b *bench) limit(ctx context.Context, p limitedPeer, place pacedPlace, l load) (f limitedFigure, err error) {
	api, err := fakeapi.Start(fakeapi.Config{Latency: answersAfter})
	if err != nil {
		return f, err
	}
	defer api.Close()
	place.api, place.rate = api.URL(), l.rate
	err = b.servers.withDatabase(ctx, func(url string) error {
		place.postgres = url
		s, err := p.open(ctx, place)
		if err != nil {
			return err
		}
		defer s.close()
		if err := s.insert(ctx, l.calls); err != nil {
			return fmt.Errorf("insert: %w", err)
		}
		if p.postgres {
			if err := settleTables(ctx, url); err != nil {
				return err
			}
			if err := b.servers.checkpoint(ctx); err != nil {
				return err
			}
		}
		f, err = b.spend(ctx, s, place, l, api)
		return err
	})
	if !p.postgres {
		f.Postgres, f.Statements, f.WALBytes = 0, nil, nil // what servers do when nobody asks them is not the peer's
	}
	if !p.redis {
		f.Redis = 0
	}
	f.CPU = f.Workers + f.Dispatchers + f.Postgres + f.Redis
	f.Peer, f.Rate, f.Calls = p.name, l.rate, l.calls
	return f, err
}

// settleTables does what autovacuum would soon after so many inserts.
func settleTables(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "VACUUM ANALYZE")
	return errors.Join(err, conn.Close(ctx))
}

// spend starts the processes, waits until every call is done, ends the processes, and says what all of that took.
func (b *bench) spend(ctx context.Context, s limitedSystem, place pacedPlace, l load, api *fakeapi.API) (f limitedFigure, err error) {
	if err := b.countStatements(ctx); err != nil {
		return f, err
	}
	before, err := b.readPaced(ctx, place.postgres, nil)
	if err != nil {
		return f, err
	}
	begun := time.Now()
	running, err := s.start(ctx)
	if err != nil {
		return f, err
	}
	f.Unfinished, err = awaitLimited(ctx, s, l, api)
	if err := errors.Join(err, running.stop()); err != nil {
		return f, err
	}
	after, err := b.readPaced(ctx, place.postgres, nil)
	if err != nil {
		return f, err
	}
	if err := b.sayTop(ctx, float64(l.calls)); err != nil {
		return f, err
	}
	arrived := seen(api.Requests())
	f.Unfinished = max(f.Unfinished, l.calls-arrived.calls)
	f.Requests = api.Count()
	f.Worst = float64(api.MaxInWindow(limitedWindow)) / float64(l.rate)
	f.Seconds = arrived.last.Sub(begun).Seconds()
	f.Use = float64(arrived.calls) / (float64(l.rate) * (arrived.last.Sub(arrived.first).Seconds()/limitedWindow.Seconds() + 1))
	runs, err := s.runs(ctx, running)
	if err != nil {
		return f, err
	}
	calls := float64(max(arrived.calls, 1))
	f.Runs = float64(runs) / calls
	micros := func(d time.Duration) float64 { return float64(d.Microseconds()) / calls }
	for _, p := range running {
		if p.dispatches {
			f.Dispatchers += micros(p.used())
		} else {
			f.Workers += micros(p.used())
		}
	}
	f.Postgres, f.Redis = micros(after.postgres-before.postgres), micros(after.redis-before.redis)
	f.Statements = new(float64(after.statements-before.statements) / calls)
	f.WALBytes = new(float64(after.wal-before.wal) / calls)
	return f, nil
}

// awaitLimited waits until the API has seen every call and the peer has recorded it, or for as long as it may take. It
// says how many calls are not recorded.
func awaitLimited(ctx context.Context, s limitedSystem, l load, api *fakeapi.API) (left int, err error) {
	takes := time.Duration(float64(l.calls) / float64(l.rate) * float64(limitedWindow))
	over := time.After(limitedTimes*takes + limitedSlack)
	tick := time.NewTicker(limitedAsk)
	defer tick.Stop()
	for {
		// The peer is not asked before, so that asking costs it nothing.
		if api.Count() >= l.calls && seen(api.Requests()).calls == l.calls {
			if left, err = s.left(ctx); err != nil || left == 0 {
				return left, err
			}
		}
		select {
		case <-tick.C:
		case <-over:
			return s.left(ctx)
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// arrivals are when the calls came to the API, each for the first time.
type arrivals struct {
	calls       int
	first, last time.Time
}

func seen(requests []fakeapi.Request) (a arrivals) {
	paths := map[string]bool{}
	for _, r := range requests {
		if paths[r.Path] {
			continue
		}
		paths[r.Path] = true
		if a.calls++; a.calls == 1 {
			a.first = r.At
		}
		a.last = r.At
	}
	return a
}

// limitedColumns are the table's.
var limitedColumns = []struct {
	name   string
	value  func(limitedFigure) *float64
	format func(float64) string
}{
	{"worst window / limit", func(f limitedFigure) *float64 { return &f.Worst }, ratio},
	{"use", func(f limitedFigure) *float64 { return &f.Use }, ratio},
	{"handler runs", func(f limitedFigure) *float64 { return &f.Runs }, ratio},
	{"CPU, µs a call", func(f limitedFigure) *float64 { return &f.CPU }, whole},
	{"statements", func(f limitedFigure) *float64 { return f.Statements }, ratio},
	{"WAL, bytes", func(f limitedFigure) *float64 { return f.WALBytes }, whole},
	{"to the end, s", func(f limitedFigure) *float64 { return &f.Seconds }, number},
}

// whole writes no fractions, and thousands apart.
func whole(v float64) string {
	if v < 99.95 {
		return strconv.Itoa(int(math.Round(v)))
	}
	return number(v)
}

// writeLimited writes a line for each limit and peer: the median of each figure over the rounds, and the least and the most.
func writeLimited(w io.Writer, all []limitedFigure) error {
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprint(out, "|\tlimit\t|\tpeer\t|")
	for _, c := range limitedColumns {
		fmt.Fprintf(out, "\t%s\t|", c.name)
	}
	fmt.Fprintf(out, "\n|\t---\t|\t---\t|%s\n", strings.Repeat("\t--:\t|", len(limitedColumns)))
	for _, g := range groupLimited(all) {
		fmt.Fprintf(out, "|\t%d/s\t|\t%s\t|", g.rate, g.peer)
		for _, c := range limitedColumns {
			fmt.Fprintf(out, "\t%s\t|", limitedCell(g.column(c.value), c.format))
		}
		fmt.Fprintln(out)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	for _, f := range all {
		if f.Unfinished > 0 {
			fmt.Fprintf(w, "%s left %d of %d calls under %d/s in round %d.\n", f.Peer, f.Unfinished, f.Calls, f.Rate, f.Round)
		}
	}
	return nil
}

func limitedCell(values map[int]float64, format func(float64) string) string {
	if len(values) == 1 {
		_, median, _ := ends(values)
		return format(median)
	}
	return spread(values, format)
}

// limitedGroup are a peer's figures under a limit.
type limitedGroup struct {
	rate    int
	peer    string
	figures []limitedFigure
}

// groupLimited puts them in the order of limits and peers.
func groupLimited(all []limitedFigure) (groups []limitedGroup) {
	var rates []int
	for _, f := range all {
		if !slices.Contains(rates, f.Rate) {
			rates = append(rates, f.Rate)
		}
	}
	slices.Sort(rates)
	for _, rate := range rates {
		for _, p := range limitedPeers() {
			g := limitedGroup{rate: rate, peer: p.name}
			for _, f := range all {
				if f.Rate == rate && f.Peer == p.name {
					g.figures = append(g.figures, f)
				}
			}
			if g.figures != nil {
				groups = append(groups, g)
			}
		}
	}
	return groups
}

// column is a value in each round, none where it could not be had.
func (g limitedGroup) column(value func(limitedFigure) *float64) map[int]float64 {
	values := map[int]float64{}
	for _, f := range g.figures {
		if v := value(f); v != nil {
			values[f.Round] = *v
		}
	}
	return values
}
