package backlog_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// queue is a queue whose flows a test walks, as claims do.
type queue struct {
	t    *testing.T
	pool *pgxpool.Pool // a claim's: by its settings, Postgres would compare every call with every other to check them
	name string
	all  *pgxpool.Pool // reads everything

	drained backlog.Drained // by the last drain
}

func newQueue(t *testing.T) *queue {
	t.Helper()
	settings := ledger.Settings()
	settings["idle_in_transaction_session_timeout"] = "0"
	all := pgtest.New(t)
	return &queue{t: t, pool: pgtest.Another(t, all, settings), name: "q", all: all}
}

func (q *queue) exec(sql string) {
	q.t.Helper()
	if _, err := q.pool.Exec(q.t.Context(), sql); err != nil {
		q.t.Fatalf("%v\n%s", err, sql)
	}
}

func (q *queue) value(sql string) (n int64) {
	q.t.Helper()
	if err := q.all.QueryRow(q.t.Context(), sql).Scan(&n); err != nil {
		q.t.Fatalf("%v\n%s", err, sql)
	}
	return n
}

// tx is a transaction under the lock of the queue's row, if it has one.
func (q *queue) tx(run func(ctx context.Context, tx pgx.Tx) error) {
	q.t.Helper()
	err := pgx.BeginFunc(q.t.Context(), q.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(q.t.Context(), `SELECT FROM callq.call_queues WHERE name = $1 FOR NO KEY UPDATE`, q.name); err != nil {
			return err
		}
		return run(q.t.Context(), tx)
	})
	if err != nil {
		q.t.Fatal(err)
	}
}

// drain drains all that is due within an hour.
func (q *queue) drain() {
	q.t.Helper()
	q.drainAt(time.Now().Add(time.Hour))
}

func (q *queue) drainAt(now time.Time) {
	q.t.Helper()
	for !q.drainOnce(now) {
	}
}

// drainOnce reports whether it drained all that is due then.
func (q *queue) drainOnce(now time.Time) (all bool) {
	q.t.Helper()
	q.tx(func(ctx context.Context, tx pgx.Tx) error {
		// It is told where some flows are, and where there is none, or another queue's.
		rows, _ := tx.Query(ctx, `SELECT ctid::text FROM callq.call_flows WHERE ctid::text LIKE '%1)' UNION ALL SELECT '(9999,9)'`)
		places, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		due := backlog.Due{Queue: q.name, Now: now}
		for _, place := range places {
			due.Known = append(due.Known, backlog.Flow{Place: place})
		}
		drained, err := backlog.Drain(ctx, tx, &pgx.Batch{}, due)
		all, q.drained = drained.All, drained
		return err
	})
	return all
}

// claim takes up to most calls of each flow, in order, and says which; they are dispatched.
func (q *queue) claim(most int64) (claimed []int64) {
	q.t.Helper()
	q.tx(func(ctx context.Context, tx pgx.Tx) error {
		walked, err := backlog.Walk(ctx, tx, q.name, "", []string{"http"}, 10_000)
		if err != nil {
			return err
		}
		asks := make([]backlog.Ask, len(walked))
		for i, l := range walked {
			asks[i] = backlog.Ask{Flow: l, Want: min(most, l.Calls)}
		}
		calls, err := backlog.First(ctx, tx, q.name, false, time.Now().Add(time.Hour), asks)
		if err != nil {
			return err
		}
		var writes pgx.Batch
		var ids, again []int64
		for _, c := range calls {
			l := &walked[c.Ask]
			l.Head, l.Consumed, l.Calls = c.Seq, c.Place, l.Calls-1
			if c.Waits {
				ids = append(ids, c.ID)
			} else {
				again = append(again, c.ID)
			}
		}
		writes.Queue(`UPDATE call_queue SET status = 'dispatched', attempts = attempts + 1 WHERE id = ANY($1)`, ids)
		backlog.Consume(&writes, q.name, walked, false)
		backlog.Requeue(&writes, false, again, 50*time.Millisecond)
		claimed = ids
		return tx.SendBatch(ctx, &writes).Close()
	})
	return claimed
}

// claimAll takes all calls that are due, in order in each flow.
func (q *queue) claimAll() (claimed []int64) {
	q.t.Helper()
	for some := true; some; {
		now := q.claim(1000)
		claimed, some = append(claimed, now...), len(now) > 0
	}
	return claimed
}

// sound fails the test unless each call that waits is in flow or in the inbox, and each flow counts its own.
func (q *queue) sound() {
	q.t.Helper()
	if n := q.value(`SELECT count(*) FROM call_queue q WHERE status IN ('new', 'error') AND NOT EXISTS (SELECT FROM callq.call_backlog i WHERE i.id = q.id)`); n > 0 {
		q.t.Errorf("%d calls wait and are in no flow", n)
	}
	if n := q.value(`SELECT count(*) FROM callq.call_flows l WHERE calls <> (
			SELECT count(*) FROM callq.call_segments w CROSS JOIN LATERAL unnest(w.ids) WITH ORDINALITY AS i (id, place)
			WHERE (w.queue, w.key, w.priority, w.task) = (l.queue, l.key, l.priority, l.task)
			  AND (w.seq > l.head OR w.seq = l.head AND i.place > l.consumed))`); n > 0 {
		q.t.Errorf("%d flows do not count their calls right", n)
	}
}

func ids(from, to int64) (list []int64) {
	for id := from; id <= to; id++ {
		list = append(list, id)
	}
	return list
}

// What a flow gives out, and in which order.
func TestOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run  func(q *queue)
		most int64
		want []int64
	}{
		"segments, partly consumed": {func(q *queue) {
			q.exec(`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 700)`)
			q.drain()
			if got := q.claim(300); !slices.Equal(got, ids(1, 300)) {
				q.t.Errorf("first %v", got)
			}
		}, 1000, ids(301, 700)},
		"by when they are due": {func(q *queue) {
			q.exec(`INSERT INTO call_queue (queue, run_at) SELECT 'q', now() - i * interval '1 s' FROM generate_series(1, 5) i`)
			q.drain()
		}, 10, []int64{5, 4, 3, 2, 1}},
		"what comes back unsent goes first": {func(q *queue) {
			q.exec(`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 600)`)
			q.drain()
			q.claim(300)
			q.exec(`UPDATE call_queue SET status = 'new' WHERE id IN (7, 9, 300)`)
			q.drain()
		}, 5, []int64{7, 9, 300, 301, 302}},
		"what comes back into an empty flow": {func(q *queue) {
			q.exec(`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 3)`)
			q.drain()
			q.claim(9)
			q.exec(`UPDATE call_queue SET status = 'error', run_at = now() + id * interval '1 ms'`)
			q.exec(`INSERT INTO call_queue (queue, run_at) VALUES ('q', now() + interval '1 min')`)
			q.drain()
		}, 9, []int64{1, 2, 3, 4}},
		"what has ended is passed": {func(q *queue) {
			q.exec(`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 20)`)
			q.drain()
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id < 5`)
			q.exec(`DELETE FROM call_queue WHERE id = 6`)
			if got := q.claim(3); len(got) > 0 {
				q.t.Errorf("claimed %v", got)
			}
		}, 4, []int64{5, 7, 8}},
		"what plain SQL moves is where it was moved to": {func(q *queue) {
			q.exec(`INSERT INTO call_queue (queue, key) SELECT 'q', 'a' FROM generate_series(1, 4)`)
			q.drain()
			q.exec(`UPDATE call_queue SET key = 'b' WHERE id = 1`)
			q.exec(`UPDATE call_queue SET priority = 0 WHERE id = 4`)
			q.exec(`UPDATE call_queue SET queue = 'other' WHERE id = 2`)
			q.drain()
		}, 9, []int64{4, 3, 1}},
		"what is in flow twice": {func(q *queue) {
			q.exec(`INSERT INTO call_queue (queue) VALUES ('q'), ('q')`)
			q.exec(`INSERT INTO callq.call_inbox SELECT * FROM callq.call_inbox`)
			q.drain()
		}, 9, []int64{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			c.run(q)
			q.sound()
			if diff := gocmp.Diff(c.want, q.claim(c.most)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			q.sound()
		})
	}
}

// A call whose row is locked keeps its place in the inbox, and comes later.
func TestLockedCallComesLater(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queue (queue) VALUES ('q'), ('q'), ('q')`)
	q.drain()
	q.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM call_queue WHERE id = 2 FOR UPDATE`); err != nil {
			return err
		}
		if got := q.claim(9); !slices.Equal(got, []int64{1, 3}) {
			t.Errorf("claimed %v", got)
		}
		return nil
	})
	q.sound()
	q.drain()
	if got := q.claim(9); !slices.Equal(got, []int64{2}) {
		t.Errorf("then %v", got)
	}
}

// Producers with open transactions, rollbacks and savepoints, several takers: each call that was committed
// is claimed once.
func TestProducersAtOnce(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	const producers, turns = 6, 40
	done := make(chan error, producers)
	for p := range producers {
		go func() {
			done <- func() error {
				for i := range turns {
					err := pgx.BeginFunc(t.Context(), q.pool, func(tx pgx.Tx) error {
						if _, err := tx.Exec(t.Context(), `INSERT INTO call_queue (queue, key) SELECT 'q', $1 FROM generate_series(1, $2)`, fmt.Sprint(i%5), 1+i%3); err != nil {
							return err
						}
						inner, err := tx.Begin(t.Context())
						if err != nil {
							return err
						}
						if _, err := inner.Exec(t.Context(), `INSERT INTO call_queue (queue, key) VALUES ('q', 'rolled back'), ('q', '1')`); err != nil {
							return err
						}
						if i%2 == 0 {
							return inner.Rollback(t.Context())
						}
						if err := inner.Commit(t.Context()); err != nil || p > 0 || i%4 != 1 {
							return err
						}
						return pgx.ErrTxCommitRollback
					})
					if err != nil && !errors.Is(err, pgx.ErrTxCommitRollback) {
						return err
					}
				}
				return nil
			}()
		}()
	}
	var claimed []int64
	for left := producers; left > 0; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			left--
		default:
			q.drain()
			claimed = append(claimed, q.claim(7)...)
		}
	}
	q.drain()
	q.sound()
	claimed = append(claimed, q.claimAll()...)
	if n := q.value(`SELECT count(*) FROM call_queue`); n == 0 || n != int64(len(claimed)) || q.value(`SELECT max(attempts) FROM call_queue`) > 1 {
		t.Errorf("%d claims of %d calls", len(claimed), n)
	}
}

// A drain says which flows it has filed calls into, as they are now, but for parked ones; not where they are many.
func TestDrainTellsWhatItFiled(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	insert := func(keys int) {
		t.Helper()
		q.exec(fmt.Sprintf(`INSERT INTO call_queue (queue, key) SELECT 'q', 'k' || i FROM generate_series(1, %d) i`, keys))
		q.drain()
	}
	told := func() (flows []backlog.Flow) {
		rows, _ := q.all.Query(t.Context(), `SELECT key, priority, task, calls, head, consumed, tail, ctid::text AS place FROM callq.call_flows
			WHERE wake_at IS NULL AND key <= 'k3' ORDER BY key`)
		flows, err := pgx.CollectRows(rows, pgx.RowToStructByName[backlog.Flow])
		if err != nil {
			t.Fatal(err)
		}
		return flows
	}
	byKey := func(a, b backlog.Flow) int { return cmp.Compare(a.Key, b.Key) }
	for _, what := range []string{"new ones", "the same", "one is parked"} {
		if what == "one is parked" {
			q.exec(`UPDATE callq.call_flows SET wake_at = now() + interval '1 day' WHERE key = 'k2'`)
		}
		insert(3)
		got := slices.SortedFunc(slices.Values(q.drained.Filed), byKey)
		if diff := gocmp.Diff(told(), got); diff != "" || q.drained.Else {
			t.Errorf("%s: filed, -as they are +told:\n%s others: %v", what, diff, q.drained.Else)
		}
	}
	if insert(256); len(q.drained.Filed) != 255 || q.drained.Else {
		t.Errorf("of 256 flows, one of them parked, it tells %d, others: %v", len(q.drained.Filed), q.drained.Else)
	}
	if insert(257); len(q.drained.Filed) != 0 || !q.drained.Else {
		t.Errorf("of 257 flows it tells %d, others: %v", len(q.drained.Filed), q.drained.Else)
	}
}
