package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/schema"
)

// long measures callq on tables in which so many calls have ended, of three attempts each, in turn with one that begins empty:
// inserts and drains. Then it says how large the tables are, and what verify, retention and vacuum take.
func (b *bench) long(ctx context.Context, out io.Writer) error {
	return b.servers.withDatabase(ctx, func(longURL string) error {
		return b.servers.withDatabase(ctx, func(emptyURL string) error {
			empty, full := &callq{}, &callq{}
			defer empty.close()
			defer full.close()
			if err := errors.Join(empty.open(ctx, emptyURL, b.servers.redisURL()), full.open(ctx, longURL, b.servers.redisURL())); err != nil {
				return err
			}
			begun := time.Now()
			if err := full.fillEnded(ctx, b.ended); err != nil {
				return err
			}
			fmt.Fprintf(b.say, "%d calls filled in, %s\n", b.ended, time.Since(begun).Round(time.Second))
			if err := b.longRounds(ctx, out, empty, full); err != nil {
				return err
			}
			if err := full.sayLong(ctx, out, b.ended); err != nil {
				return err
			}
			return b.retain(ctx, out, full)
		})
	})
}

// longRounds drains in both, each first in every other round.
func (b *bench) longRounds(ctx context.Context, out io.Writer, empty, full *callq) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "round\tbulk insert, a second: empty\tlong\tratio\tdrain, a second: empty\tlong\tratio\tPostgres's CPU, µs a call: empty\tlong")
	var ratios []float64
	for round := range b.rounds + 1 {
		figures := map[*callq][]figure{}
		order := []*callq{empty, full}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, c := range order {
			measured, err := b.bulkAndDrain(ctx, c)
			if err != nil {
				return err
			}
			figures[c] = measured
		}
		e, f := figures[empty], figures[full]
		fmt.Fprintf(table, "%d\t%.0f\t%.0f\t%.2f\t%.0f\t%.0f\t%.2f\t%.1f\t%.1f\n", round, e[0].PerSecond, f[0].PerSecond, f[0].PerSecond/e[0].PerSecond,
			e[1].PerSecond, f[1].PerSecond, f[1].PerSecond/e[1].PerSecond, *e[1].PostgresMicros, *f[1].PostgresMicros)
		if round > 0 {
			ratios = append(ratios, f[1].PerSecond/e[1].PerSecond)
		}
	}
	slices.Sort(ratios)
	fmt.Fprintf(table, "drain, long / empty: median %.2f\n", ratios[len(ratios)/2])
	return table.Flush()
}

// sayLong says how large the tables are, and what verify of the last minutes takes.
func (c *callq) sayLong(ctx context.Context, out io.Writer, ended int) error {
	rows, err := c.producers.Query(ctx, `SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class WHERE relname IN ('call_queue', 'call_attempts')`)
	if err != nil {
		return err
	}
	var name string
	var table, indexes int64
	_, err = pgx.ForEachRow(rows, []any{&name, &table, &indexes}, func() error {
		_, err := fmt.Fprintf(out, "%s: %d MB of rows and %d MB of indexes for each million of ended calls\n", name, table/int64(ended), indexes/int64(ended))
		return err
	})
	if err != nil {
		return err
	}
	begun := time.Now()
	since := begun.Add(-10 * time.Minute)
	report, err := verify.Run(ctx, c.producers, verify.Options{Since: since})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "verify of the last 10 minutes: %s, %d attempts, %d findings\n", time.Since(begun).Round(time.Millisecond), report.Attempts, len(report.Findings))
	return nil
}

// retain says what retention of a part takes while calls are inserted and drained, who waited longest for a lock meanwhile, and what
// vacuum takes then.
func (b *bench) retain(ctx context.Context, out io.Writer, c *callq) (err error) {
	pool, end, err := ledger.Connect(ctx, c.producers, schema.Names{}, 1) // as callq's own connections are
	if err != nil {
		return err
	}
	defer end()
	locks, err := watchLocks(ctx, b.servers.postgres.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locks.stop()) }()
	retained := make(chan error, 1)
	go func() {
		begun := time.Now()
		purged, err := maintenance.Purge(ctx, pool, maintenance.Retention{Done: 90 * 24 * time.Hour, Failed: time.Hour, Cancelled: time.Hour})
		fmt.Fprintf(out, "retention beside drains: %d calls and %d attempts gone in %s\n", purged.Calls, purged.Attempts, time.Since(begun).Round(time.Millisecond))
		retained <- err
	}()
	for drains := 1; ; drains++ {
		if _, err := b.bulkAndDrain(ctx, c); err != nil {
			return errors.Join(err, <-retained)
		}
		select {
		case err = <-retained:
			longest := locks.take()
			fmt.Fprintf(out, "meanwhile %d drains; the longest wait for a lock was %.0f ms: %s\n", drains, longest.ms, longest.query)
		default:
			continue
		}
		break
	}
	if err != nil {
		return err
	}
	begun := time.Now()
	err = maintenance.Vacuum(ctx, pool)
	fmt.Fprintf(out, "vacuum after it: %s\n", time.Since(begun).Round(time.Millisecond))
	return err
}

// fillEnded inserts n calls that ended, the newest a day ago and a tenth of them more than 90 days ago. Triggers would hold all
// of it in memory, and have nothing to do with what has ended.
func (c *callq) fillEnded(ctx context.Context, n int) error {
	conn, err := c.producers.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	// Rows grow as calls end, so a page of ended calls has no room for another.
	for _, sql := range []string{
		`SET session_replication_role = replica`, `SET synchronous_commit = off`, `ALTER TABLE call_queue SET (fillfactor = 60)`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	const step = 500_000
	for first := 1; first <= n; first += step {
		for _, sql := range []string{endedCallsSQL, endedAttemptsSQL} {
			if _, err := conn.Exec(ctx, sql, first, min(first+step-1, n), n, callqTask); err != nil {
				return fmt.Errorf("fill in what has ended: %w", err)
			}
		}
	}
	if _, err := conn.Exec(ctx, `SET session_replication_role = origin`); err != nil {
		return err
	}
	for _, sql := range []string{ // what would come later
		`ALTER TABLE call_queue SET (fillfactor = 50)`, `VACUUM (FREEZE, ANALYZE) call_queue, call_attempts`, `CHECKPOINT`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, `SELECT setval(pg_get_serial_sequence('call_queue', 'id'), $1)`, n)
	c.ended = n
	for busy := true; busy && err == nil; time.Sleep(time.Second) {
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_progress_vacuum)`).Scan(&busy)
	}
	return err
}

const (
	endedCallsSQL = `
INSERT INTO call_queue (id, status, attempts, failed_count, created_at, run_at, dispatched_at, finished_at, task, call_data)
OVERRIDING SYSTEM VALUE
SELECT i, 'done', 3, 2, at, at, at, at, $4,
    jsonb_build_object('n', i, 'method', 'POST', 'url', 'https://api.example.com/v1/messages')
FROM (SELECT i, now() - interval '1 day' - interval '99 days' * ($3 - i) / $3::float AS at FROM generate_series($1::bigint, $2::bigint) i) c`

	endedAttemptsSQL = `
INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, worker, charged)
SELECT i, k, 1, at, at, at, at, CASE k WHEN 3 THEN 'done' ELSE 'error' END, 'default', $4, '', 'bench', '[]'
FROM (SELECT i, now() - interval '1 day' - interval '99 days' * ($3 - i) / $3::float AS at FROM generate_series($1::bigint, $2::bigint) i) c,
    generate_series(1, 3) k`
)
