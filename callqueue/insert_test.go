package callqueue_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger/ledgertest"
)

// Every field arrives, by either way in and in each of pgx's query modes, poolers' too.
func TestInsertRoundTrip(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	at := time.Date(2031, 2, 3, 4, 5, 6, 789_000, time.UTC)
	calls := []struct {
		call callqueue.Call
		want callqueue.Record
	}{
		{callqueue.Call{}, callqueue.Record{
			Queue: "default", Task: "http", Priority: 5, Cost: 1, Data: json.RawMessage(`{}`),
		}},
		{callqueue.Call{RunAt: time.Time{}.Local(), Data: json.RawMessage(nil)}, callqueue.Record{
			Queue: "default", Task: "http", Priority: 5, Cost: 1, Data: json.RawMessage(`{}`),
		}},
		{callqueue.Call{Data: []byte(` ["\ud83d\ude00", "\\ud800", "\\u0000", "\ufffd"] `)}, callqueue.Record{
			Queue: "default", Task: "http", Priority: 5, Cost: 1,
			Data: json.RawMessage(`["😀", "\\ud800", "\\u0000", "` + "\ufffd" + `"]`),
		}},
		{callqueue.Call{Data: "\ufffd, or " + `\ufffd`}, callqueue.Record{
			Queue: "default", Task: "http", Priority: 5, Cost: 1, Data: json.RawMessage("\"\ufffd, or " + `\\ufffd"`),
		}},
		{callqueue.Call{
			Queue: "größer", Task: "send", Key: strings.Repeat("k", 255), Data: map[string]int{"a": 1}, Cost: 7,
			Priority: new(0), RunAt: at.In(time.FixedZone("", 3600)), ExpiresAt: at, UniqueKey: "u", MaxAttempts: 4,
		}, callqueue.Record{
			Queue: "größer", Task: "send", Key: strings.Repeat("k", 255), Data: json.RawMessage(`{"a": 1}`), Cost: 7,
			Priority: 0, RunAt: at, ExpiresAt: &at, UniqueKey: new("u"), MaxAttempts: new(4),
		}},
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			client, pool := another(t, base, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			for _, c := range calls {
				ledgertest.Exec(t, pool, `DELETE FROM call_queue`)
				id, err := client.Insert(t.Context(), c.call)
				if err != nil {
					t.Fatal(err)
				}
				check := func(id int64) {
					got, err := client.Get(t.Context(), id)
					if err != nil {
						t.Fatal(err)
					}
					want := c.want
					want.ID, want.Status, want.CreatedAt = id, callqueue.StatusNew, got.CreatedAt
					if want.RunAt.IsZero() {
						want.RunAt = got.CreatedAt
					}
					if diff := cmp.Diff(&want, got, cmpopts.EquateEmpty()); diff != "" {
						t.Error(diff)
					}
					if since := time.Since(got.CreatedAt); since < -time.Minute || since > time.Minute {
						t.Errorf("created %v ago", since)
					}
				}
				check(id)
				ledgertest.Exec(t, pool, `DELETE FROM call_queue`)
				ids, err := client.InsertMany(t.Context(), []callqueue.Call{c.call})
				if err != nil {
					t.Fatal(err)
				}
				check(ids[0])
			}
		})
	}
}

func TestInsertTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	var statements atomic.Int64
	client, _ := another(t, base, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = onStatement(func(string) { statements.Add(1) })
	})
	later := time.Now().Add(time.Hour) // no wake comes between
	for _, call := range []callqueue.Call{{RunAt: later}, {RunAt: later, UniqueKey: "u"}} {
		statements.Store(0)
		if _, err := client.Insert(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		if n := statements.Load(); n != 1 {
			t.Errorf("%d statements, want 1", n)
		}
	}
}

func TestInsertTxFollowsItsTransaction(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	for _, commit := range []bool{false, true} {
		tx := begin(t, pool)
		id, err := client.InsertTx(t.Context(), tx, callqueue.Call{UniqueKey: "u"})
		if err != nil {
			t.Fatal(err)
		}
		ids, err := client.InsertManyTx(t.Context(), tx, []callqueue.Call{{UniqueKey: "v"}})
		if err != nil {
			t.Fatal(err)
		}
		end, want := tx.Rollback, callqueue.ErrNotFound
		if commit {
			end, want = tx.Commit, nil
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, id := range []int64{id, ids[0]} {
			if _, err := client.Get(t.Context(), id); !errors.Is(err, want) {
				t.Errorf("commit %v: got %v, want %v", commit, err, want)
			}
		}
	}
}

func TestDuplicate(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	call := callqueue.Call{UniqueKey: "u"}
	first, err := client.Insert(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	isDuplicate := func(id int64, err error) {
		t.Helper()
		if id != first || !errors.Is(err, callqueue.ErrDuplicate) {
			t.Errorf("got %d, %v; want %d, ErrDuplicate", id, err, first)
		}
	}
	isDuplicate(client.Insert(t.Context(), call))
	isDuplicate(client.Insert(t.Context(), callqueue.Call{Queue: "default", UniqueKey: "u"}))
	if _, err := client.Insert(t.Context(), callqueue.Call{Queue: "other", UniqueKey: "u"}); err != nil {
		t.Errorf("another queue: %v", err)
	}

	tx := begin(t, pool)
	isDuplicate(client.InsertTx(t.Context(), tx, call))
	_, err = client.InsertManyTx(t.Context(), tx, []callqueue.Call{{}, {UniqueKey: "new"}, call})
	isDuplicateAt(t, err, 2, first)
	after, err := client.InsertTx(t.Context(), tx, callqueue.Call{UniqueKey: "new"})
	if err != nil {
		t.Errorf("the transaction after a duplicate: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	before := count(t, pool)
	_, err = client.InsertMany(t.Context(), []callqueue.Call{{}, {UniqueKey: "new"}, call})
	isDuplicateAt(t, err, 1, after)
	_, err = client.InsertMany(t.Context(), []callqueue.Call{{UniqueKey: "w"}, {}, {Queue: "default", UniqueKey: "w"}})
	isDuplicateAt(t, err, 2, 0)
	if n := count(t, pool); n != before {
		t.Errorf("%d calls after refused batches, want %d", n, before)
	}

	ledgertest.Exec(t, pool, endSQL, "u")
	if id, err := client.Insert(t.Context(), call); err != nil || id == first {
		t.Errorf("after the first ended: got %d, %v; want a new call", id, err)
	}
}

// A batch's plain-SQL neighbours may have an empty unique key: no call without one is its duplicate.
func TestEmptyUniqueKeyBySQL(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	ledgertest.Exec(t, pool, `INSERT INTO call_queue (unique_key) VALUES (''), ('u')`)
	_, err := client.InsertMany(t.Context(), []callqueue.Call{{}, {UniqueKey: "u"}})
	isDuplicateAt(t, err, 1, 2)
}

func TestConcurrentDuplicates(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	client, pool := another(t, base, func(c *pgxpool.Config) { c.MaxConns = 20 })
	for _, c := range []struct {
		name   string
		rows   int
		insert func() (int64, error)
	}{
		{"Insert", 1, func() (int64, error) {
			return client.Insert(t.Context(), callqueue.Call{UniqueKey: "a"})
		}},
		{"InsertTx", 1, func() (id int64, err error) {
			var duplicate error
			err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				id, err = client.InsertTx(t.Context(), tx, callqueue.Call{UniqueKey: "a"})
				if errors.Is(err, callqueue.ErrDuplicate) {
					duplicate, err = err, nil
				}
				return err
			})
			return id, errors.Join(err, duplicate)
		}},
		{"InsertMany", 3, func() (int64, error) {
			ids, err := client.InsertMany(t.Context(), []callqueue.Call{{}, {UniqueKey: "b"}, {UniqueKey: "a"}})
			if duplicate, ok := errors.AsType[*callqueue.DuplicateError](err); ok {
				return duplicate.ID, err
			}
			if err != nil {
				return 0, err
			}
			return ids[1], nil // the first that a duplicate may meet
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 5 {
				ledgertest.Exec(t, pool, `DELETE FROM call_queue`)
				ids, errs := make([]int64, 20), make([]error, 20)
				together(20, func(i int) { ids[i], errs[i] = c.insert() })
				won := 0
				for i, err := range errs {
					switch {
					case err == nil:
						won++
					case !errors.Is(err, callqueue.ErrDuplicate):
						t.Fatal(err)
					case ids[i] == 0:
						t.Error("a duplicate without the existing id")
					}
					if ids[i] != ids[0] {
						t.Errorf("ids %d and %d, want one", ids[i], ids[0])
					}
				}
				if won != 1 || count(t, pool) != c.rows {
					t.Fatalf("%d won and %d rows, want 1 and %d", won, count(t, pool), c.rows)
				}
			}
		})
	}
}

// Two batches with the same keys in opposite order: while a third transaction holds the middle one,
// each takes what it can. They deadlock then, and the one that Postgres ends begins anew.
func TestBatchesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	tx := begin(t, pool)
	if _, err := client.InsertTx(t.Context(), tx, callqueue.Call{UniqueKey: "b"}); err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	errs := make([]error, 2)
	for i, calls := range [][]callqueue.Call{
		{{UniqueKey: "a"}, {UniqueKey: "b"}, {UniqueKey: "c"}},
		{{UniqueKey: "c"}, {UniqueKey: "b"}, {UniqueKey: "a"}},
	} {
		done.Go(func() { _, errs[i] = client.InsertMany(t.Context(), calls) })
	}
	ledgertest.AwaitLocks(t, pool, 2)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	done.Wait()
	oneWon, oneLost := slices.Contains(errs, nil), errors.Is(errors.Join(errs...), callqueue.ErrDuplicate)
	if n := count(t, pool); !oneWon || !oneLost || n != 3 {
		t.Errorf("got %v and %d rows; want one batch, and the other a duplicate", errs, n)
	}
}

// The call that was in the way ends before it is looked up: the insert must try again.
func TestDuplicateEndsBeforeLookUp(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	ledgertest.Exec(t, base, `INSERT INTO call_queue (unique_key) VALUES ('one'), ('many')`)
	key := "one"
	client, _ := another(t, base, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = onStatement(func(sql string) {
			if strings.Contains(sql, "SELECT given.n") {
				ledgertest.Exec(t, base, endSQL, key)
			}
		})
	})
	if id, err := client.Insert(t.Context(), callqueue.Call{UniqueKey: "one"}); err != nil || id < 3 {
		t.Errorf("got %d, %v; want a new call", id, err)
	}
	key = "many"
	if ids, err := client.InsertMany(t.Context(), []callqueue.Call{{UniqueKey: "many"}}); err != nil || ids[0] < 3 {
		t.Errorf("got %d, %v; want a new call", ids, err)
	}
}

func TestInsertMany(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	calls := make([]callqueue.Call, 10_001)
	for i := range calls {
		calls[i] = callqueue.Call{Data: i}
		if i%3 == 0 {
			calls[i].UniqueKey = time.Duration(1000 - i).String()
		}
	}
	ids, err := client.InsertMany(t.Context(), calls)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), `SELECT call_data::integer FROM unnest($1::bigint[]) WITH ORDINALITY AS given (id, n)
		JOIN call_queue USING (id) ORDER BY n`, ids)
	if err != nil {
		t.Fatal(err)
	}
	data, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(data) != len(calls) {
		t.Fatalf("%d rows, %v; want %d", len(data), err, len(calls))
	}
	for i := range data {
		if data[i] != i || i > 0 && ids[i] <= ids[i-1] {
			t.Fatalf("id %d, of call %d, is call %d's", ids[i], i, data[i])
		}
	}
	if next, err := client.Insert(t.Context(), callqueue.Call{}); err != nil || next <= ids[len(ids)-1] {
		t.Errorf("the next insert: %d, %v; want an id above %d", next, err, ids[len(ids)-1])
	}
	if ids, err := client.InsertMany(t.Context(), nil); err != nil || len(ids) != 0 {
		t.Errorf("no calls: %v, %v", ids, err)
	}
}

const endSQL = `UPDATE call_queue SET status = 'done', finished_at = now(), unique_key = NULL WHERE unique_key = $1`

func isDuplicateAt(t *testing.T, err error, index int, id int64) {
	t.Helper()
	duplicate, ok := errors.AsType[*callqueue.DuplicateError](err)
	if !ok || !errors.Is(err, callqueue.ErrDuplicate) || duplicate.Index != index || duplicate.ID != id {
		t.Errorf("got %v, want a duplicate at %d of call %d", err, index, id)
	}
}

// another returns a client with a pool of its own on the same database.
func another(t *testing.T, base *pgxpool.Pool, change func(*pgxpool.Config)) (*callqueue.Client, *pgxpool.Pool) {
	t.Helper()
	config := base.Config()
	change(config)
	pool := open(t, config)
	client, err := callqueue.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	return client, pool
}

func open(t *testing.T, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// onStatement is a tracer that is called with each statement before it is sent.
type onStatement func(sql string)

func (f onStatement) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	f(strings.TrimSpace(data.SQL))
	return ctx
}

func (onStatement) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
