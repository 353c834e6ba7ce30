package maintenance

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ledgerOf is a database whose statements are counted.
type ledgerOf struct {
	t    *testing.T
	pool *pgxpool.Pool
	mu   sync.Mutex
	sent map[string]int
}

func (l *ledgerOf) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[data.SQL]++
	return ctx
}

func (*ledgerOf) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func newLedger(t *testing.T) *ledgerOf {
	t.Helper()
	l := &ledgerOf{t: t, sent: map[string]int{}}
	config := pgtest.NewWith(t, ledger.Settings()).Config()
	config.ConnConfig.Tracer = l
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	l.pool = pool
	return l
}

func (l *ledgerOf) exec(sql string, args ...any) {
	l.t.Helper()
	if _, err := l.pool.Exec(l.t.Context(), sql, args...); err != nil {
		l.t.Fatal(err)
	}
}

// calls inserts n that ended so long ago, each with an attempt.
func (l *ledgerOf) calls(n int, status, age string) {
	l.t.Helper()
	l.exec(`WITH c AS (
			INSERT INTO call_queue (status, finished_at) SELECT $2, now() - $3::interval FROM generate_series(1, $1) RETURNING id, finished_at
		) INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, arrived_by, finished_at, outcome, queue, task, key, charged)
		SELECT id, 1, 1, finished_at, finished_at, finished_at, 'done', 'default', 'http', '', '[]' FROM c`, n, status, age)
}

// purge runs p, and wants so many calls and attempts removed by so many statements.
func (l *ledgerOf) purge(p *Purger, keep Retention, calls, attempts int64, callBatches, attemptBatches int) {
	l.t.Helper()
	clear(l.sent)
	purged, err := p.Purge(l.t.Context(), l.pool, keep)
	if err != nil {
		l.t.Fatal(err)
	}
	if purged.Calls != calls || purged.Attempts != attempts {
		l.t.Errorf("removed %d calls and %d attempts, want %d and %d", purged.Calls, purged.Attempts, calls, attempts)
	}
	if c, a := l.sent[purgeCallsSQL], l.sent[purgeAttemptsSQL]; c != callBatches || a != attemptBatches {
		l.t.Errorf("ran %d batches of calls and %d of attempts, want %d and %d", c, a, callBatches, attemptBatches)
	}
}

// read is how many rows of a table and of its indexes this database's sessions have read.
func (l *ledgerOf) read(table string) (n int64) {
	l.t.Helper()
	// Sessions tell what they have read when they end, if not before.
	l.pool.Reset()
	for busy, end := true, time.Now().Add(time.Minute); busy; {
		err := l.pool.QueryRow(l.t.Context(), `SELECT count(*) > 1 FROM pg_stat_activity, pg_sleep(0.005)
			WHERE datname = current_database() AND backend_type = 'client backend'`).Scan(&busy)
		if err != nil || time.Now().After(end) {
			l.t.Fatalf("sessions have not ended (%v)", err)
		}
	}
	if err := l.pool.QueryRow(l.t.Context(), `SELECT s.seq_tup_read + sum(i.idx_tup_read)::bigint
		FROM pg_stat_user_tables s JOIN pg_stat_user_indexes i USING (relid) WHERE s.relname = $1 GROUP BY s.seq_tup_read`, table).Scan(&n); err != nil {
		l.t.Fatal(err)
	}
	return n
}

// A run in which nothing is due reads nothing of what is kept, however much that is.
func TestPurgerReadsWhatIsDue(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.calls(5500, "done", "1 hour")
	var p Purger
	l.purge(&p, Retention{}, 0, 0, 6, 6)
	for _, table := range []string{"call_queue", "call_attempts"} {
		before := l.read(table)
		l.purge(&p, Retention{}, 0, 0, 0, 0)
		if n := l.read(table) - before; n > 0 { // not even the lowest id, which all that was removed may lie before
			t.Errorf("it reads %d rows of %s", n, table)
		}
	}
	l.calls(10, "done", "1 hour")
	l.purge(&p, Retention{}, 0, 0, 1, 1)
	l.purge(&p, Retention{}, 0, 0, 0, 0)
	if len(p.calls) != 6 || len(p.attempts) != 6 {
		t.Errorf("it remembers %v and %v, want six stretches each", p.calls, p.attempts)
	}
	l.purge(&p, Retention{Done: time.Minute}, 5510, 5510, 6, 6)
	if len(p.calls) != 1 || len(p.attempts) != 1 {
		t.Errorf("nothing is left, and it remembers %v and %v", p.calls, p.attempts)
	}
}

// What becomes old goes with the next run, and the attempts with it, or when no window reaches them any more.
func TestPurgerRemovesWhatBecomesOld(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"done", "failed", "cancelled"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			l := newLedger(t)
			keep := Retention{Done: 2 * time.Hour, Failed: 2 * time.Hour, Cancelled: 2 * time.Hour}
			age := map[string]*time.Duration{"done": &keep.Done, "failed": &keep.Failed, "cancelled": &keep.Cancelled}
			*age[status] = time.Hour
			others := map[string]string{"done": "failed", "failed": "cancelled", "cancelled": "done"}[status]
			l.calls(1500, others, "1 hour")
			l.calls(1000, status, "1 hour")
			l.calls(1500, others, "1 hour")
			// Without a limit, windows reach back 10 minutes.
			l.exec(`UPDATE call_attempts SET arrived_by = now() - interval '10 minutes' + interval '4 s' WHERE call_id > 2000`)
			l.exec(`UPDATE call_queue SET finished_at = now() - interval '1 hour' + interval '2 s' WHERE id BETWEEN 1501 AND 2500`)
			var p Purger
			l.purge(&p, keep, 0, 0, 4, 5)
			l.wait(`SELECT max(finished_at) + interval '1 hour' FROM call_queue WHERE id BETWEEN 1501 AND 2500`)
			l.purge(&p, keep, 1000, 500, 2, 3)
			l.wait(`SELECT max(arrived_by) + interval '10 minutes' FROM call_attempts WHERE call_id BETWEEN 2001 AND 2500`)
			l.purge(&p, keep, 0, 500, 0, 1)
			l.purge(&p, keep, 0, 0, 0, 0)
		})
	}
}

// wait waits until a time that Postgres names.
func (l *ledgerOf) wait(sql string) {
	l.t.Helper()
	l.exec(`SELECT pg_sleep(extract(epoch FROM (` + sql + `) - clock_timestamp()))`)
}

// Calls that end while they are kept are found in time: none ends before the run that saw it wait.
func TestPurgerFindsWhatHasEnded(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.exec(`INSERT INTO call_queue SELECT FROM generate_series(1, 700)`)
	keep := Retention{Done: time.Second, Failed: time.Hour, Cancelled: time.Hour}
	var p Purger
	l.purge(&p, keep, 0, 0, 1, 0)
	l.exec(`UPDATE call_queue SET status = 'done', finished_at = clock_timestamp() WHERE id <= 300`)
	l.wait(`SELECT max(finished_at) + interval '1 second' FROM call_queue`)
	l.purge(&p, keep, 300, 0, 1, 0)
}

// What is new is found, whatever ids it has, and however many attempts of known calls were added. So is what another removes.
func TestPurgerFindsWhatIsNew(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.calls(1500, "done", "1 day")
	var p Purger
	l.purge(&p, Retention{}, 0, 0, 2, 2)
	l.calls(2500, "done", "1 year")
	l.purge(&p, Retention{}, 2500, 2500, 3, 3)
	l.exec(`ALTER TABLE call_queue ALTER id RESTART WITH 1000000`)
	l.calls(3, "failed", "1 year")
	l.calls(3, "failed", "1 day")
	l.purge(&p, Retention{}, 3, 3, 1, 1)
	// Two more of a call in the first stretch, one of which is in reach; then the calls go.
	l.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, arrived_by, finished_at, outcome, queue, task, key, charged)
		SELECT c, n, 1, now(), now() - n * interval '4 min', now(), 'done', 'default', 'http', '', '[]' FROM generate_series(1, 1000) c, generate_series(1, 3) n
		ON CONFLICT DO NOTHING`)
	l.exec(`DELETE FROM call_queue WHERE id <= 900`)
	l.purge(&p, Retention{}, 0, 0, 0, 0)
	for i := range p.calls {
		p.calls[i].again = time.Now()
	}
	for i := range p.attempts { // as a day later
		p.attempts[i].again = time.Now()
	}
	l.purge(&p, Retention{}, 0, 1800, 2, 4)
	l.purge(&p, Retention{Done: time.Hour}, 600, 700, 1, 2)
}

// A row that cannot be removed is tried by each run, and its neighbours are left alone.
func TestPurgerPassesOver(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.calls(2500, "done", "1 year")
	l.exec(`CREATE TABLE orders (call bigint REFERENCES call_queue (id))`)
	l.exec(`INSERT INTO orders VALUES (700), (2500)`)
	l.calls(1000, "done", "1 day")
	var p Purger
	for i, calls := range []int64{2498, 0, 0} {
		purged, err := p.Purge(t.Context(), l.pool, Retention{})
		if err != nil || purged.Calls != calls || purged.Kept != 2 || !strings.Contains(purged.KeptFor, "foreign key") {
			t.Errorf("run %d: %+v, %v", i, purged, err)
		}
	}
	due := slices.DeleteFunc(slices.Clone(p.calls), func(s stretch) bool { return !s.again.IsZero() })
	if len(due) != 2 {
		t.Errorf("of %v two should be due", p.calls)
	}
	l.exec(`DELETE FROM orders`)
	if purged, err := p.Purge(t.Context(), l.pool, Retention{}); err != nil || purged != (Purged{Calls: 2, Attempts: 2}) {
		t.Errorf("then %+v, %v", purged, err)
	}
	if len(p.calls) > 2 {
		t.Errorf("it remembers %v", p.calls)
	}
}

// Other ages, a longer window and an error have all read again.
func TestPurgerForgets(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.calls(2000, "done", "1 hour")
	var p Purger
	l.purge(&p, Retention{}, 0, 0, 2, 3)
	l.purge(&p, Retention{Done: 2 * time.Hour}, 0, 0, 2, 3)
	l.purge(&p, Retention{Done: 2 * time.Hour}, 0, 0, 0, 0)
	l.exec(`INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, count_cost, slack, send_within, queues, applied_at, applied_by, epoch)
		VALUES ('api', 1, 100, '1 min', '60 ms', false, false, '1 s', '1 s', '{}', now(), 'test', callq.epoch())`)
	l.purge(&p, Retention{Done: 2 * time.Hour}, 0, 0, 2, 3)
	l.exec(`ALTER TABLE callq.call_meta RENAME TO moved`)
	if _, err := p.Purge(t.Context(), l.pool, Retention{Done: 2 * time.Hour}); err == nil {
		t.Error("without a table it has no error")
	}
	l.exec(`ALTER TABLE callq.moved RENAME TO call_meta`)
	l.purge(&p, Retention{Done: 2 * time.Hour}, 0, 0, 2, 3)
}

// The rows of a call that fill a batch are removed a batch a run.
func TestPurgerOfManyAttempts(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
		SELECT 7, n, 1, now(), now() - interval '1 year', 'not_sent', 'default', 'http', '', '[]' FROM generate_series(1, 2300) n`)
	var p Purger
	for _, attempts := range []int64{1000, 1000, 300} {
		l.purge(&p, Retention{}, 0, attempts, 0, 1)
	}
	l.purge(&p, Retention{}, 0, 0, 0, 0)
}
