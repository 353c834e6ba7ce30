package report

import (
	"fmt"
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// The oldest call is the one that a look at all calls finds, whatever has ended in its chunk or before it.
func TestReadOldest(t *testing.T) {
	t.Parallel()
	const thousand = `INSERT INTO call_queue (queue, key, run_at) SELECT 'q', 'k', now() - interval '1 h' FROM generate_series(1, 1000)`
	for name, c := range map[string]struct{ insert, then string }{
		"nothing":              {`SELECT`, `SELECT`},
		"nothing is due":       {`INSERT INTO call_queue (run_at) VALUES (now() + interval '1 h')`, `SELECT`},
		"the first":            {thousand, `SELECT`},
		"the first have ended": {thousand, `UPDATE call_queue SET status = 'cancelled' WHERE id <= 700`},
		"the first are gone":   {thousand, `DELETE FROM call_queue WHERE id <= 700`},
		"all have ended":       {thousand, `UPDATE call_queue SET status = 'done'`},
		"of another queue":     {thousand, `INSERT INTO call_queue (queue, run_at) VALUES ('r', now() - interval '2 h')`},
		"behind some that have ended": {
			thousand, `INSERT INTO call_queue (queue) VALUES ('r'); UPDATE call_queue SET status = 'done' WHERE queue = 'q'`,
		},
		"behind some that are put off": {
			thousand, `INSERT INTO call_queue (queue) VALUES ('r'); UPDATE call_queue SET run_at = now() + interval '1 h' WHERE queue = 'q'`,
		},
		"the first were put off and are due": {thousand, `UPDATE call_queue SET run_at = now() - interval '1 m' WHERE id < 10`},
		"behind many chunks that have ended": {
			`INSERT INTO call_queue (queue, key, run_at) SELECT 'q', 'k' || i, now() - i * interval '1 m' FROM generate_series(1, 400) i`,
			`UPDATE call_queue SET status = 'done' WHERE id > 100`,
		},
		"behind one whose chunk is older": {
			`INSERT INTO call_queue (queue, run_at) SELECT 'q', now() - (121 - i) * interval '1 m' FROM generate_series(1, 120) i`,
			`INSERT INTO call_queue (queue, run_at) VALUES ('r', now() - interval '1 h'); UPDATE call_queue SET status = 'done' WHERE id < 120`,
		},
		"since ever": {thousand, `INSERT INTO call_queue (run_at) VALUES ('-infinity')`},
	} {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, taken in %v", name, taken), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.New(t)
				exec(t, pool, c.insert)
				if taken {
					takeIn(t, pool, "q")
				}
				exec(t, pool, c.then)
				waiting, err := ReadWaiting(t.Context(), pool)
				if err != nil {
					t.Fatal(err)
				}
				oldest, err := ReadOldest(t.Context(), pool, waiting, 0)
				if err != nil {
					t.Fatal(err)
				}
				var want, got int64
				if err := pool.QueryRow(t.Context(), `SELECT coalesce((
					SELECT id FROM call_queue WHERE status IN ('new', 'error') AND run_at <= now() ORDER BY run_at, id LIMIT 1), 0)`).Scan(&want); err != nil {
					t.Fatal(err)
				}
				if oldest != nil {
					got = oldest.ID
				}
				if got != want {
					t.Errorf("the oldest is %d, want %d", got, want)
				}
			})
		}
	}
}

// Behind very many that have ended, status does not go on to look: whoever must know, does.
func TestOldestBehindMany(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"of a key each": `INSERT INTO call_queue (queue, key, run_at) SELECT 'q', 'k' || i, now() - interval '1 h' + i * interval '1 ms' FROM generate_series(1, 12000) i`,
		"of one key":    `INSERT INTO call_queue (queue, run_at) SELECT 'q', now() - interval '1 h' FROM generate_series(1, 12000) i`,
	} {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, taken in %v", name, taken), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.New(t)
				exec(t, pool, insert)
				if taken {
					takeIn(t, pool, "q")
				}
				exec(t, pool, `UPDATE call_queue SET status = 'cancelled' WHERE id <= 11000`)
				waiting, err := ReadWaiting(t.Context(), pool)
				if err != nil {
					t.Fatal(err)
				}
				for most, want := range map[int64]int64{0: 11001, 10_000: 0, 11_500: 11001} {
					oldest, err := ReadOldest(t.Context(), pool, waiting, most)
					if err != nil {
						t.Fatal(err)
					}
					var got int64
					if oldest != nil {
						got = oldest.ID
					}
					if got != want {
						t.Errorf("among %d the oldest is %d, want %d", most, got, want)
					}
				}
				exec(t, pool, `VACUUM ANALYZE`)
				settings := map[string]string{"jit": "off", "max_parallel_workers_per_gather": "0", "enable_seqscan": "off"}
				for _, sql := range []string{oldestSQL + oldestOfAllSQL, oldestSQL + "LIMIT 1"} {
					if n := pgtest.Work(t, pool, settings, sql, "'{q}'", "500", "1000"); n > 15_000 {
						t.Errorf("to look at the first 1,000, plans handled %d", n)
					}
				}
			})
		}
	}
}

// Of however many chunks and calls, the oldest is found in one pass, and of a chunk no more is read than it takes.
func TestOldestReadsLittle(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO call_queue (queue, key) SELECT 'keys', 'k' || i FROM generate_series(1, 20000) i`)
	takeIn(t, pool, "keys")
	exec(t, pool, `INSERT INTO call_queue (queue, run_at) SELECT 'one', now() - interval '1 h' FROM generate_series(1, 50000)`)
	exec(t, pool, `VACUUM ANALYZE`)
	settings := map[string]string{"jit": "off", "max_parallel_workers_per_gather": "0"}
	if n := pgtest.Work(t, pool, settings, oldestSQL+oldestOfAllSQL, "'{one}'", "30", "10000"); n > 3*20000 {
		t.Errorf("to find the oldest of 20,000 chunks, plans handled %d", n)
	}
}
