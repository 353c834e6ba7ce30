package callqueue_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
)

func TestInvalidCalls(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t, callqueue.MaxData(1000))
	long := strings.Repeat("x", 256)
	now := time.Now()
	for _, c := range []struct {
		name  string
		call  callqueue.Call
		field string
		is    error
	}{
		{"a queue too long", callqueue.Call{Queue: long}, "Queue", nil},
		{"a task too long", callqueue.Call{Task: long}, "Task", nil},
		{"a key too long", callqueue.Call{Key: long}, "Key", nil},
		{"a unique key too long", callqueue.Call{UniqueKey: long}, "UniqueKey", nil},
		{"a queue not in UTF-8", callqueue.Call{Queue: "a\xff"}, "Queue", nil},
		{"a task with half a rune", callqueue.Call{Task: "\xe2\x82"}, "Task", nil},
		{"a key with an encoded surrogate", callqueue.Call{Key: "\xed\xa0\x80"}, "Key", nil},
		{"a key with a NUL byte", callqueue.Call{Key: "a\x00b"}, "Key", nil},
		{"a unique key with a NUL byte", callqueue.Call{UniqueKey: "\x00"}, "UniqueKey", nil},
		{"a negative cost", callqueue.Call{Cost: -1}, "Cost", nil},
		{"a priority below 0", callqueue.Call{Priority: new(-1)}, "Priority", nil},
		{"a priority above 9", callqueue.Call{Priority: new(10)}, "Priority", nil},
		{"negative attempts", callqueue.Call{MaxAttempts: -1}, "MaxAttempts", nil},
		{"more attempts than a queue may have", callqueue.Call{MaxAttempts: 1001}, "MaxAttempts", nil},
		{"a run after year 9999", callqueue.Call{RunAt: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}, "RunAt", nil},
		{"an expiry before Christ", callqueue.Call{ExpiresAt: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)}, "ExpiresAt", nil},
		{"expired before it may run", callqueue.Call{RunAt: now, ExpiresAt: now.Add(-time.Second)}, "ExpiresAt", nil},
		{"data too large", callqueue.Call{Data: strings.Repeat("x", 999)}, "Data", callqueue.ErrTooLarge},
		{"raw data too large", callqueue.Call{Data: []byte(strings.Repeat("1", 1001))}, "Data", callqueue.ErrTooLarge},
		{"data that is not JSON", callqueue.Call{Data: json.RawMessage(`{"a":`)}, "Data", nil},
		{"data that is empty", callqueue.Call{Data: []byte{}}, "Data", nil},
		{"two values as data", callqueue.Call{Data: []byte(`{} {}`)}, "Data", nil},
		{"raw data not in UTF-8", callqueue.Call{Data: []byte("\"\xff\"")}, "Data", nil},
		{"raw data with a NUL byte", callqueue.Call{Data: []byte("{}\x00")}, "Data", nil},
		{"data that json cannot write", callqueue.Call{Data: math.NaN()}, "Data", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, one := client.Insert(t.Context(), c.call)
			_, many := client.InsertMany(t.Context(), []callqueue.Call{{}, c.call, {}})
			tx := begin(t, pool)
			_, oneTx := client.InsertTx(t.Context(), tx, c.call)
			_, manyTx := client.InsertManyTx(t.Context(), tx, []callqueue.Call{{}, c.call})
			if err := tx.Commit(t.Context()); err != nil {
				t.Errorf("commit after the refusals: %v", err)
			}
			for _, got := range []struct {
				err   error
				index int
			}{{one, 0}, {many, 1}, {oneTx, 0}, {manyTx, 1}} {
				invalid, ok := errors.AsType[*callqueue.InvalidCallError](got.err)
				if !ok {
					t.Fatalf("got %v, want an InvalidCallError", got.err)
				}
				if invalid.Index != got.index || invalid.Field != c.field || invalid.Reason == "" {
					t.Errorf("got %+v, want index %d and field %s", invalid, got.index, c.field)
				}
				if errors.Is(got.err, callqueue.ErrTooLarge) != (c.is != nil) {
					t.Errorf("%v: ErrTooLarge is %v", got.err, c.is == nil)
				}
			}
		})
	}
	if n := count(t, pool); n != 0 {
		t.Errorf("%d calls were written, want none", n)
	}
}

// What the client does not check, Postgres refuses: data that jsonb does not take, and what a trigger or a database in LATIN1
// does not.
func TestRefusedByPostgres(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	refused := func(data any) {
		t.Helper()
		_, one := client.Insert(t.Context(), callqueue.Call{Data: data})
		_, many := client.InsertMany(t.Context(), []callqueue.Call{{Data: data}})
		for _, err := range []error{one, many} {
			if _, ok := errors.AsType[*callqueue.InvalidCallError](err); !ok {
				t.Errorf("%v: got %v, want an InvalidCallError", data, err)
			}
			if _, ok := errors.AsType[*pgconn.PgError](err); !ok {
				t.Errorf("%v: got %v, want the PgError in it", data, err)
			}
		}
	}
	for _, text := range []string{`{"a":"\u0000"}`, `["\ud800x"]`, `{"\udc00":1}`, `1e131073`} {
		refused(json.RawMessage(text))
	}
	ledgertest.Exec(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'no equivalent' USING ERRCODE = '22P05'; END $$`)
	ledgertest.Exec(t, pool, `CREATE TRIGGER refuse BEFORE INSERT ON call_queue FOR EACH ROW EXECUTE FUNCTION refuse()`)
	refused(nil)
}

func TestNew(t *testing.T) {
	t.Parallel()
	if _, err := callqueue.New(nil); err == nil {
		t.Error("a nil pool was taken")
	}
}

func newClient(t *testing.T, opts ...callqueue.Option) (*callqueue.Client, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.New(t)
	client, err := callqueue.New(pool, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return client, pool
}

func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	return tx
}

func count(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	var n int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM call_queue`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
