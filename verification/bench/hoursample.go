package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Where a run is with the snapshot.
const (
	snapshotNotYet = "not yet"
	snapshotHeld   = "held"
	snapshotEnded  = "ended"
)

// hourSample is what a line says. µs are of time in Postgres, waits for locks too, by its own clock.
type hourSample struct {
	At         float64            `json:"at"`       // seconds from the first insert to the line's end
	Snapshot   string             `json:"snapshot"` // during the line
	Done       float64            `json:"done"`     // attempts closed
	PerSecond  float64            `json:"per_second"`
	Postgres   float64            `json:"postgres_us"` // all statements of dispatchers and workers, but chores
	Claims     float64            `json:"claims_us"`   // those of dispatchers
	Closes     float64            `json:"closes_us"`
	Chores     float64            `json:"chores_us"`
	LockWait   float64            `json:"lock_wait_ms"` // the longest, as lockWatch sees it
	LockedIn   string             `json:"locked_in"`    // its statement
	Dispatcher float64            `json:"dispatcher_mib"`
	Worker     float64            `json:"worker_mib"` // the larger of them, as above
	Redis      float64            `json:"redis_mib"`
	Tables     map[string]float64 `json:"tables_mb"` // with indexes
}

// hourTables are those whose size a line says.
func hourTables() []string {
	return []string{"call_queue", "call_attempts", "call_open", "call_usage", "call_inbox", "call_flows", "call_segments"}
}

// hourMemory is what a line says of memory, in MiB.
func hourMemory() []hourGrowing {
	return []hourGrowing{
		{"dispatcher, MiB", func(s hourSample) float64 { return s.Dispatcher }},
		{"worker, MiB", func(s hourSample) float64 { return s.Worker }},
		{"Redis, MiB", func(s hourSample) float64 { return s.Redis }},
	}
}

// hourGrowing is something that may grow.
type hourGrowing struct {
	name string
	of   func(hourSample) float64
}

func hourHeading() string {
	return "      at  snapshot  done/s  µs a call: Postgres  claims  closes  chores  lock wait, ms  MiB: dispatcher  worker  Redis  MB: " +
		strings.Join(hourTables(), "  ")
}

func (s hourSample) line() string {
	at := time.Duration(s.At * float64(time.Second)).Round(time.Second)
	text := fmt.Sprintf("%8s  %-8s  %6.0f  %19.0f  %6.0f  %6.0f  %6.0f  %13.0f  %15.1f  %6.1f  %5.1f    ",
		at, s.Snapshot, s.PerSecond, s.Postgres, s.Claims, s.Closes, s.Chores, s.LockWait, s.Dispatcher, s.Worker, s.Redis)
	for _, name := range hourTables() {
		text += fmt.Sprintf("  %*.1f", len(name), s.Tables[name])
	}
	return text
}

// hourSampler takes samples. One goroutine uses it.
type hourSampler struct {
	bench *bench
	callq *hourCallq
	locks *lockWatch
	begun time.Time

	last hourTotals
	at   time.Time // of last; zero: begun
}

// hourTotals are what pg_stat_statements has counted, in µs.
type hourTotals struct{ postgres, claims, closes, chores, done float64 }

func (h *hourSampler) take(ctx context.Context, snapshot string) (s hourSample, err error) {
	now, totals, err := h.totals(ctx)
	if err != nil {
		return s, err
	}
	from := h.at
	if from.IsZero() {
		from = h.begun
	}
	s = totals.since(h.last, now.Sub(from))
	s.At, s.Snapshot = now.Sub(h.begun).Seconds(), snapshot
	h.last, h.at = totals, now
	wait := h.locks.take()
	s.LockWait, s.LockedIn = wait.ms, wait.query
	for _, p := range h.callq.running {
		resident := residentMiB(p.cmd.Process.Pid)
		if p.dispatches {
			s.Dispatcher = max(s.Dispatcher, resident)
		} else {
			s.Worker = max(s.Worker, resident)
		}
	}
	s.Redis = residentMiB(h.bench.servers.redis.Pid())
	s.Tables, err = h.tables(ctx)
	return s, err
}

func (h *hourSampler) totals(ctx context.Context) (now time.Time, t hourTotals, err error) {
	err = h.bench.servers.admin.QueryRow(ctx, hourTotalsSQL, h.callq.conn.Config().Database, dispatchersRole, workersRole, choresOf()).
		Scan(&t.postgres, &t.claims, &t.closes, &t.chores, &t.done)
	if err != nil {
		return now, t, fmt.Errorf("read pg_stat_statements: %w", err)
	}
	if t.done == 0 && time.Since(h.begun) > time.Minute {
		return now, t, errors.New("pg_stat_statements has no close of an attempt: none ended, or its text is another now")
	}
	return time.Now(), t, nil
}

// choresOf are pieces of what dispatchers run once a minute or less: vacuum, retention, and the history of minutes. That is no claim.
func choresOf() []string {
	return []string{
		`%VACUUM (%`, `%JOIN pg\_stat\_user\_tables%`,
		`%seen AS MATERIALIZED%`, `%(min(id),%`, `%(min(call\_id),%`, `%purge\_versions%`,
		`%UPDATE public.call\_attempts a SET result%`,
		`%callq.call\_limit\_history%`, `%callq.call\_queue\_history%`, `%INTO callq.call\_meta%`,
	}
}

// A close is known by what it inserts, and by what it locks before.
const hourTotalsSQL = `
SELECT coalesce(sum(us) FILTER (WHERE NOT chore), 0), coalesce(sum(us) FILTER (WHERE of = $2 AND NOT chore), 0),
    coalesce(sum(us) FILTER (WHERE closes OR locks), 0), coalesce(sum(us) FILTER (WHERE chore), 0), coalesce(sum(rows) FILTER (WHERE closes), 0)::float
FROM (
    SELECT r.rolname AS of, 1000 * s.total_exec_time AS us, s.rows,
        r.rolname = $2 AND s.query LIKE ANY ($4::text[]) AS chore,
        r.rolname = $3 AND s.query LIKE '%INSERT INTO public.call\_attempts%' AS closes,
        r.rolname = $3 AND s.query LIKE '%FOR UPDATE OF o' AS locks
    FROM pg_stat_statements s
    JOIN pg_roles r ON r.oid = s.userid
    JOIN pg_database d ON d.oid = s.dbid
    WHERE d.datname = $1 AND r.rolname IN ($2, $3)
) s`

func (t hourTotals) since(before hourTotals, took time.Duration) hourSample {
	done := t.done - before.done
	each := func(from, to float64) float64 { return (to - from) / max(done, 1) }
	return hourSample{
		Done: done, PerSecond: done / took.Seconds(),
		Postgres: each(before.postgres, t.postgres), Claims: each(before.claims, t.claims), Closes: each(before.closes, t.closes),
		Chores: each(before.chores, t.chores),
	}
}

func (h *hourSampler) tables(ctx context.Context) (map[string]float64, error) {
	rows, _ := h.callq.conn.Query(ctx, hourTablesSQL, hourTables())
	sizes := map[string]float64{}
	var name string
	var mb float64
	_, err := pgx.ForEachRow(rows, []any{&name, &mb}, func() error {
		sizes[name] = mb
		return nil
	})
	if err == nil && len(sizes) != len(hourTables()) {
		err = fmt.Errorf("measured the sizes of %v only", sizes)
	}
	return sizes, err
}

const hourTablesSQL = `
SELECT c.relname, pg_total_relation_size(c.oid) / 1e6::float
FROM pg_class c
WHERE c.relname = ANY ($1) AND c.relnamespace IN ('public'::regnamespace, 'callq'::regnamespace)`

// residentMiB is the memory of a process; 0 where /proc does not say.
func residentMiB(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "\nVmRSS:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.ParseFloat(fields[0], 64) // the kernel writes numbers
	return kib / 1024
}
