package callqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/pgtest"
)

// Among many calls that are done, a list reads a small part of them, whatever it is a list of, and whether
// or not there is any.
func TestListReadsLittle(t *testing.T) {
	t.Parallel()
	client, pool := filled(t, 200_000)
	var pages int64
	if err := pool.QueryRow(t.Context(), `SELECT pg_relation_size('call_queue') / 8192`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	filters := map[string]Filter{
		"all":             {},
		"a queue":         {Queue: "q3"},
		"a rare queue":    {Queue: "rare"},
		"no such queue":   {Queue: "none"},
		"a key":           {Key: new("k2")},
		"a rare key":      {Key: new("solo")},
		"no such key":     {Key: new("none")},
		"only old ones":   {Key: new("old")},
		"no such task":    {Task: "none"},
		"without a key":   {Key: new("")},
		"failed of a key": {Key: new("k2"), Statuses: []Status{StatusFailed}},
		"above one":       {After: 50_000},
		"a queue's above": {Queue: "q3", After: 50_000},
		"a rare queue's":  {Queue: "rare", After: 50_000},
		"a key's above":   {Key: new("k2"), After: 50_000},
	}
	for _, s := range []Status{
		StatusNew, StatusDispatched, StatusDone, StatusError, StatusFailed, StatusCancelled,
	} {
		filters["status "+string(s)] = Filter{Statuses: []Status{s}}
	}
	for name, f := range filters {
		rows, read := explain(t, pool, f)
		if read > pages/3 {
			t.Errorf("%s: reads %d pages of %d for %d rows", name, read, pages, rows)
		}
	}
	if list, err := client.List(t.Context(), Filter{Key: new("solo")}, listed); err != nil || len(list) != 7 {
		t.Errorf("a rare key: %d calls, %v", len(list), err)
	}
}

// What is to be retried is not looked for among all that waits, where that is much.
func TestListOfRetriesReadsLittle(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO call_queue (status) SELECT CASE WHEN i <= 20 THEN 'error' ELSE 'new' END FROM generate_series(1, 40000) i`,
		`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() FROM generate_series(1, 40000)`,
		ledgerSQL, `DELETE FROM call_attempts WHERE attempt = 1`, `VACUUM ANALYZE`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if rows, read := explain(t, pool, Filter{Statuses: []Status{StatusError}}); rows != 20 || read > 2000 {
		t.Errorf("20 calls to be retried among 40,000 that wait: found %d, read %d pages", rows, read)
	}
}

// However many lines and news there are, those that have none of a list are not read for it.
func TestListOfWaitingReadsLittle(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{true, false} {
		t.Run(fmt.Sprintf("taken in %v", taken), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			exec := func(sql string) {
				t.Helper()
				if _, err := pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			exec(`INSERT INTO call_queue (queue, key, task) VALUES ('few', 'k1', 'rare')`)
			exec(`INSERT INTO call_queue (queue, key) SELECT 'many', 'k' || i FROM generate_series(1, 60000) i`)
			if taken {
				takeIn(t, pool, "few")
				takeIn(t, pool, "many")
			}
			exec(`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() FROM generate_series(1, 20000)`)
			exec(`VACUUM ANALYZE`)

			waits := []Status{StatusNew}
			_, recent := explain(t, pool, Filter{Queue: "many", Statuses: []Status{StatusFailed}, After: 60_001})
			for name, c := range map[string]struct {
				filter Filter
				rows   int
			}{
				"a rare task":   {Filter{Task: "rare", Statuses: waits}, 1},
				"no such task":  {Filter{Task: "none", Statuses: waits}, 0},
				"a rare queue":  {Filter{Queue: "few", Statuses: waits}, 1},
				"no such queue": {Filter{Queue: "none", Statuses: waits}, 0},
				"a key":         {Filter{Key: new("k1"), Statuses: waits}, 2},
				"no such key":   {Filter{Key: new("none"), Statuses: waits}, 0},
			} {
				if rows, read := explain(t, pool, c.filter); rows != c.rows || read > recent+200 {
					t.Errorf("%s: found %d, want %d, and read %d pages, %d of them for the newest ids", name, rows, c.rows, read, recent)
				}
			}
		})
	}
}

// Where much waits and is old, neither what is newer nor all that waits is gone through; nor where a queue has many
// calls that are old.
func TestListOfOldReadsLittle(t *testing.T) {
	t.Parallel()
	const now, later = "now()", "now() + interval '1 hour' + hashint8(i) * interval '1 microsecond'"
	for name, c := range map[string]struct{ key, runAt string }{
		"each of a key":            {"'k' || i", now},
		"of few keys":              {"'k' || i % 30", now},
		"scheduled":                {"'k' || i % 30", later},
		"scheduled, each of a key": {"'k' || i", later},
		"scheduled for one time":   {"'k' || i", "now() + interval '1 hour'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			exec := func(sql string) {
				t.Helper()
				if _, err := pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			exec(`INSERT INTO call_queue (queue, key, run_at) SELECT 'old', 'old', ` + c.runAt + ` FROM generate_series(1, 20000) i`)
			exec(`INSERT INTO call_queue (queue, key, task, run_at) SELECT 'old', ` + c.key + `, 'mail', ` + c.runAt + ` FROM generate_series(1, 20000) i`)
			exec(`INSERT INTO call_queue (queue, key, run_at) SELECT 'old', ` + c.key + `, ` + c.runAt + ` FROM generate_series(1, 20000) i`)
			takeIn(t, pool, "old")
			exec(`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() FROM generate_series(1, 100000)`)
			exec(`INSERT INTO call_queue (queue, key) SELECT 'new', 'k' || i FROM generate_series(1, 40000) i`)
			takeIn(t, pool, "new")
			exec(`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() FROM generate_series(1, 40000)`)
			exec(`VACUUM ANALYZE`)

			waits := []Status{StatusNew}
			_, recent := explain(t, pool, Filter{Statuses: []Status{StatusFailed}})
			for name, f := range map[string]Filter{
				"all":                {Statuses: waits},
				"a queue":            {Queue: "old", Statuses: waits},
				"a task":             {Task: "mail", Statuses: waits},
				"a key":              {Key: new("old"), Statuses: waits},
				"any of a queue":     {Queue: "old"},
				"of a queue's task":  {Queue: "old", Task: "mail"},
				"not of a queue's":   {Queue: "old", Statuses: []Status{StatusFailed}},
				"of a queue and key": {Queue: "old", Key: new("old")},
			} {
				rows, read := explain(t, pool, f)
				if rows != listed && name != "not of a queue's" || read > recent+2000 {
					t.Errorf("%s: found %d, and read %d pages, %d of them for the newest ids", name, rows, read, recent)
				}
			}
		})
	}
}

// listed is how many calls the lists are of.
const listed = 50

// explain finds a list, and says how many calls it is of and how many pages were read for that.
func explain(t *testing.T, pool *pgxpool.Pool, f Filter) (rows int, pages int64) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `SET LOCAL enable_bitmapscan = off`); err != nil { // as a pool may have it
		t.Fatal(err)
	}
	explained := &explainedTx{Tx: tx}
	ids, err := find(t.Context(), explained, f, listed, usualSizes())
	if err != nil {
		t.Fatalf("%+v: %v", f, err)
	}
	return len(ids), explained.pages
}

// explainedTx counts the pages that its queries read.
type explainedTx struct {
	pgx.Tx
	pages int64
}

func (tx *explainedTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := tx.explain(ctx, sql, args); err != nil {
		return failedRow{err}
	}
	return tx.Tx.QueryRow(ctx, sql, args...)
}

func (tx *explainedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := tx.explain(ctx, sql, args); err != nil {
		return nil, err
	}
	return tx.Tx.Query(ctx, sql, args...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

func (tx *explainedTx) explain(ctx context.Context, sql string, args []any) error {
	var text []byte
	if err := tx.Tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
		return err
	}
	var plans []struct {
		Plan struct {
			Hit  int64 `json:"Shared Hit Blocks"`
			Read int64 `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &plans); err != nil {
		return err
	}
	tx.pages += plans[0].Plan.Hit + plans[0].Plan.Read
	return nil
}
