package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
)

// How calls come at a real rate, and what API they go to.
const (
	answersAfter = 20 * time.Millisecond
	dispatchers  = 2
	pacedTick    = 10 * time.Millisecond
	stopWithin   = 20 * time.Second
)

// pacedWorkers are how many worker processes take the calls.
func pacedWorkers() []int { return []int{1, 4} }

// rates are how many calls come a second.
type rates []int

func (r *rates) String() string { return fmt.Sprint([]int(*r)) }

// Set reads a flag's value.
func (r *rates) Set(text string) error {
	*r = nil
	for part := range strings.SplitSeq(text, ",") {
		rate, err := strconv.Atoi(part)
		if err != nil || rate < 1 {
			return fmt.Errorf("%q is no number of calls a second", part)
		}
		*r = append(*r, rate)
	}
	return nil
}

func (s sizes) checkPaced() error {
	if s.paceFor < time.Second || s.rounds < 1 {
		return errors.New("-for must be at least 1s, and -rounds 1")
	}
	if len(s.pacedPeers()) == 0 {
		return fmt.Errorf("-only is %q; it may be callq, River or bare", s.only)
	}
	return nil
}

// pacedPeer makes HTTP calls in processes of its own.
type pacedPeer struct {
	name    string
	workers []int
	open    func(ctx context.Context, p pacedPlace) (pacedSystem, error)
}

// pacedPlace is where a peer works: its servers, the API that it calls and the rate at which it may.
type pacedPlace struct {
	callq, dir, postgres, redis, api string
	rate                             int
}

// pacedSystem is a peer that is ready.
type pacedSystem interface {
	// insert adds a call; nil functions have nothing to add.
	insert(ctx context.Context) error
	// start starts so many worker processes, and dispatchers where the peer has them.
	start(ctx context.Context, workers int) (processes, error)
	close()
}

// pacedFigure is what a call costs at a rate: CPU in µs, by who spends it, and what Postgres does for it. Its insert is
// taken off.
type pacedFigure struct {
	Round        int     `json:"round"`
	Rate         int     `json:"rate"`
	Workers      int     `json:"workers"`
	Peer         string  `json:"peer"`
	PerSecond    float64 `json:"per_second"` // requests that the API answered
	Postgres     float64 `json:"postgres_us"`
	Dispatchers  float64 `json:"dispatchers_us"`
	WorkersCPU   float64 `json:"workers_us"`
	Redis        float64 `json:"redis_us"`
	Statements   float64 `json:"statements"`
	Transactions float64 `json:"transactions"`
	WALBytes     float64 `json:"wal_bytes"`
}

// pacedUsage is what has been used up to a moment.
type pacedUsage struct {
	postgres, redis, workers, dispatchers time.Duration
	statements, transactions, wal         int64
	requests                              int64
}

// pacedSettings have Postgres count statements.
func pacedSettings() map[string]string {
	settings := postgresSettings()
	settings["shared_preload_libraries"] = "pg_stat_statements"
	settings["pg_stat_statements.max"] = "10000"
	return settings
}

// paced measures every peer at every rate, in every round.
func (b *bench) paced(ctx context.Context) (all []pacedFigure, err error) {
	dir, err := os.MkdirTemp("", "callq-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	place := pacedPlace{callq: filepath.Join(dir, "callq"), dir: dir, redis: b.servers.redisURL()}
	if err := b.buildCallq(ctx, place.callq); err != nil {
		return nil, err
	}
	api, err := startAPI(ctx, func() {})
	if err != nil {
		return nil, err
	}
	defer api.close()
	place.api = api.url
	for round := range b.rounds {
		for _, rate := range b.rates {
			place.rate = rate
			for _, p := range b.pacedPeers() {
				figures, err := b.pacePeer(ctx, p, place, api)
				if err != nil {
					return nil, fmt.Errorf("%s at %d/s: %w", p.name, rate, err)
				}
				for _, f := range figures {
					f.Round = round + 1
					fmt.Fprintf(b.say, "round %d  %5d/s  %d workers  %-5s  %6.0f/s  Postgres %5.0f µs\n",
						f.Round, rate, f.Workers, p.name, f.PerSecond, f.Postgres)
					all = append(all, f)
				}
			}
		}
	}
	return all, nil
}

func (s sizes) pacedPeers() []pacedPeer {
	return slices.DeleteFunc([]pacedPeer{
		{"callq", pacedWorkers(), openPacedCallq},
		{"River", pacedWorkers(), openPacedRiver},
		{"bare", []int{1}, openPacedBare},
	}, func(p pacedPeer) bool { return s.only != "" && s.only != p.name })
}

// pacePeer measures what inserts alone cost, and then, with each number of workers, all of it.
func (b *bench) pacePeer(ctx context.Context, p pacedPeer, place pacedPlace, api *pacedAPI) (figures []pacedFigure, err error) {
	for _, workers := range append([]int{0}, p.workers...) {
		err := b.servers.withDatabase(ctx, func(url string) error {
			place.postgres = url
			s, err := p.open(ctx, place)
			if err != nil {
				return err
			}
			defer s.close()
			f, err := b.pace(ctx, s, place, workers, api)
			f.Peer, f.Rate, f.Workers = p.name, place.rate, workers
			figures = append(figures, f)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	inserts := figures[0]
	for i := range figures {
		f := &figures[i]
		f.Postgres -= inserts.Postgres
		f.Statements -= inserts.Statements
		f.Transactions -= inserts.Transactions
		f.WALBytes -= inserts.WALBytes
	}
	return figures[1:], nil
}

// pace inserts at the rate and measures, once everything is warm.
func (b *bench) pace(ctx context.Context, s pacedSystem, place pacedPlace, workers int, api *pacedAPI) (f pacedFigure, err error) {
	var running processes
	if workers > 0 {
		if running, err = s.start(ctx, workers); err != nil {
			return f, err
		}
	}
	defer func() { err = errors.Join(err, running.stop()) }()
	// Connections open, and plans are made.
	if err := insertPaced(ctx, s, place.rate, b.paceFor); err != nil {
		return f, err
	}
	if err := b.countStatements(ctx); err != nil {
		return f, err
	}
	before, err := b.readPaced(ctx, place.postgres, running)
	if err != nil {
		return f, err
	}
	before.requests = api.answered.Load()
	begun := time.Now()
	if err := insertPaced(ctx, s, place.rate, b.paceFor); err != nil {
		return f, err
	}
	took := time.Since(begun)
	after, err := b.readPaced(ctx, place.postgres, running)
	if err != nil {
		return f, err
	}
	after.requests = api.answered.Load()
	calls := after.requests - before.requests
	if workers > 0 {
		if err := b.sayTop(ctx, float64(calls)); err != nil {
			return f, err
		}
	}
	if workers == 0 {
		calls = int64(float64(place.rate) * b.paceFor.Seconds())
	}
	if calls == 0 {
		return f, errors.New("no request reached the API")
	}
	return after.since(before, float64(calls), took), nil
}

func (u pacedUsage) since(before pacedUsage, calls float64, took time.Duration) pacedFigure {
	micros := func(from, to time.Duration) float64 { return float64((to - from).Microseconds()) / calls }
	each := func(from, to int64) float64 { return float64(to-from) / calls }
	return pacedFigure{
		PerSecond: float64(u.requests-before.requests) / took.Seconds(),
		Postgres:  micros(before.postgres, u.postgres), Redis: micros(before.redis, u.redis),
		Dispatchers: micros(before.dispatchers, u.dispatchers), WorkersCPU: micros(before.workers, u.workers),
		Statements: each(before.statements, u.statements), Transactions: each(before.transactions, u.transactions),
		WALBytes: each(before.wal, u.wal),
	}
}

func (b *bench) readPaced(ctx context.Context, url string, running processes) (u pacedUsage, err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return u, err
	}
	u.postgres, u.redis = familyTime(b.servers.postgres.Pid()), familyTime(b.servers.redis.Pid())
	for _, p := range running {
		if p.dispatches {
			u.dispatchers += familyTime(p.cmd.Process.Pid)
		} else {
			u.workers += familyTime(p.cmd.Process.Pid)
		}
	}
	err = b.servers.admin.QueryRow(ctx, pacedUsageSQL, config.Database).Scan(&u.statements, &u.transactions, &u.wal)
	return u, err
}

const pacedUsageSQL = `
SELECT coalesce((SELECT sum(calls) FROM pg_stat_statements WHERE dbid = d.datid), 0)::bigint,
    d.xact_commit + d.xact_rollback, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint
FROM pg_stat_database d
WHERE d.datname = $1`

// countStatements has Postgres count them from now on.
func (b *bench) countStatements(ctx context.Context) error {
	_, err := b.servers.admin.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()`)
	return err
}

// sayTop says which statements took Postgres the longest, a call.
func (b *bench) sayTop(ctx context.Context, calls float64) error {
	rows, _ := b.servers.admin.Query(ctx, topSQL, b.top)
	var n, all int64
	var ms float64
	var query string
	_, err := pgx.ForEachRow(rows, []any{&n, &ms, &all, &query}, func() error {
		fmt.Fprintf(b.say, "  %7.1f µs a call  %6.3f statements, %5.1f rows each: %s\n", 1000*ms/calls, float64(n)/calls, float64(all)/float64(n), query)
		return nil
	})
	return err
}

const topSQL = `
SELECT calls, total_exec_time, rows, left(regexp_replace(query, '\s+', ' ', 'g'), 110)
FROM pg_stat_statements
ORDER BY total_exec_time DESC
LIMIT $1`

// insertPaced inserts evenly over a time. One producer at a time inserts what is due; that is up to a tick's worth.
func insertPaced(ctx context.Context, s pacedSystem, rate int, during time.Duration) error {
	begun := time.Now()
	tick := time.NewTicker(pacedTick)
	defer tick.Stop()
	for inserted, total := 0, int(float64(rate)*during.Seconds()); inserted < total; {
		due := min(total, int(float64(rate)*time.Since(begun).Seconds()))
		var wg sync.WaitGroup
		failures := make([]error, producers)
		for i := range producers {
			wg.Go(func() {
				for n := inserted + i; n < due && failures[i] == nil; n += producers {
					failures[i] = s.insert(ctx)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(failures...); err != nil {
			return err
		}
		inserted = due
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// pacedAPI answers every request after a while.
type pacedAPI struct {
	url      string
	answered atomic.Int64
	server   *http.Server
}

// startAPI starts it. It calls arrived for each request that has come.
func startAPI(ctx context.Context, arrived func()) (*pacedAPI, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	a := &pacedAPI{url: "http://" + listener.Addr().String() + "/"}
	a.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived()
		select {
		case <-time.After(answersAfter):
			a.answered.Add(1)
		case <-r.Context().Done():
		}
	})}
	go func() { _ = a.server.Serve(listener) }() // it ends when close is called
	return a, nil
}

func (a *pacedAPI) close() { _ = a.server.Close() }

// writePaced writes a line for each peer: the median of each figure over the rounds.
func writePaced(w io.Writer, all []pacedFigure) error {
	type line struct {
		rate, workers int
		peer          string
	}
	byLine := map[line][]pacedFigure{}
	var lines []line
	for _, f := range all {
		l := line{f.Rate, f.Workers, f.Peer}
		if byLine[l] == nil {
			lines = append(lines, l)
		}
		byLine[l] = append(byLine[l], f)
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Or(a.rate-b.rate, a.workers-b.workers) })
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(out, "|\trate\t|\tworkers\t|\tpeer\t|\tdone/s\t|\tPostgres, µs a call\t|\tdispatchers\t|\tworkers\t|\tRedis\t|\t"+
		"statements\t|\ttransactions\t|\tWAL, bytes\t|")
	fmt.Fprintln(out, "|\t--:\t|\t--:\t|\t---\t|\t--:\t|\t--:\t|\t--:\t|\t--:\t|\t--:\t|\t--:\t|\t--:\t|\t--:\t|")
	for _, l := range lines {
		fmt.Fprintf(out, "|\t%d/s\t|\t%d\t|\t%s\t|", l.rate, l.workers, l.peer)
		for _, value := range []func(pacedFigure) float64{
			func(f pacedFigure) float64 { return f.PerSecond }, func(f pacedFigure) float64 { return f.Postgres },
			func(f pacedFigure) float64 { return f.Dispatchers }, func(f pacedFigure) float64 { return f.WorkersCPU },
			func(f pacedFigure) float64 { return f.Redis },
		} {
			fmt.Fprintf(out, "\t%.0f\t|", middle(byLine[l], value))
		}
		fmt.Fprintf(out, "\t%.2f\t|\t%.2f\t|\t%.0f\t|\n",
			middle(byLine[l], func(f pacedFigure) float64 { return f.Statements }),
			middle(byLine[l], func(f pacedFigure) float64 { return f.Transactions }),
			middle(byLine[l], func(f pacedFigure) float64 { return f.WALBytes }))
	}
	return out.Flush()
}

func middle(figures []pacedFigure, value func(pacedFigure) float64) float64 {
	var values []float64
	for _, f := range figures {
		values = append(values, value(f))
	}
	slices.Sort(values)
	return values[len(values)/2]
}
