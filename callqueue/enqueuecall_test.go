package callqueue_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
)

// enqueued is what enqueue_call answers; a NULL in it is an error.
type enqueued struct {
	ID        int64
	Duplicate bool
}

func enqueueCall(t *testing.T, pool *pgxpool.Pool, args string, values ...any) (enqueued, error) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT id, duplicate FROM enqueue_call(`+args+`)`, values...)
	if err != nil {
		return enqueued{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[enqueued])
}

const everyArgument = `task => $1, call_data => $2, queue => $3, key => $4, cost => $5, priority => $6,
	run_at => $7, expires_at => $8, unique_key => $9, max_attempts => $10`

// enqueuer is a pool of a role that may do nothing but execute enqueue_call.
func enqueuer(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.NewLogins(t, pool.Config().ConnString()).Enqueuer)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 20
	return open(t, config)
}

//callq:guarantee 13
func TestEnqueueCall(t *testing.T) {
	t.Parallel()
	client, owner := newClient(t)
	pool := enqueuer(t, owner)
	at := time.Date(2031, 2, 3, 4, 5, 6, 789_000, time.UTC)
	defaults := callqueue.Record{Queue: "default", Task: "http", Priority: 5, Cost: 1, Data: json.RawMessage(`{}`)}
	long := strings.Repeat("é", 127)
	for _, c := range []struct {
		name, args string
		values     []any
		want       callqueue.Record
	}{
		{"nothing", "", nil, defaults},
		{"explicit NULLs", everyArgument, make([]any, 10), defaults},
		{"empty texts", `'', '{}', '', '', unique_key => ''`, nil, defaults},
		{"task and data by place", `'send', '{"a": 1}'`, nil, callqueue.Record{
			Queue: "default", Task: "send", Priority: 5, Cost: 1, Data: json.RawMessage(`{"a": 1}`),
		}},
		{"every argument", everyArgument, []any{"send", `["a"]`, "größer", long, 7, 0, at, at, "u", 4}, callqueue.Record{
			Queue: "größer", Task: "send", Key: long, Data: json.RawMessage(`["a"]`), Cost: 7,
			Priority: 0, RunAt: at, ExpiresAt: &at, UniqueKey: new("u"), MaxAttempts: new(4),
		}},
		{"as much data as there may be", `call_data => to_jsonb(repeat('x', 262142))`, nil, callqueue.Record{
			Queue: "default", Task: "http", Priority: 5, Cost: 1,
			Data: json.RawMessage(`"` + strings.Repeat("x", 262_142) + `"`),
		}},
	} {
		answer, err := enqueueCall(t, pool, c.args, c.values...)
		if err != nil || answer.Duplicate {
			t.Fatalf("%s: %+v, %v", c.name, answer, err)
		}
		got, err := client.Get(t.Context(), answer.ID)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		want := c.want
		want.ID, want.Status, want.CreatedAt = answer.ID, callqueue.StatusNew, got.CreatedAt
		if want.RunAt.IsZero() {
			want.RunAt = got.CreatedAt
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

//callq:guarantee 13
func TestEnqueueCallRefuses(t *testing.T) {
	t.Parallel()
	_, owner := newClient(t)
	pool := enqueuer(t, owner)
	for _, c := range []struct{ args, code, says string }{
		{`repeat('é', 128)`, "22023", "task is longer than 255 bytes"},
		{`queue => repeat('q', 256)`, "22023", "queue is longer than 255 bytes"},
		{`key => repeat('k', 256)`, "22023", "key is longer than 255 bytes"},
		{`unique_key => repeat('u', 256)`, "22023", "unique_key is longer than 255 bytes"},
		{`cost => 0`, "22023", "cost is 0, less than 1"},
		{`cost => -1`, "22023", "cost is -1, less than 1"},
		{`priority => -1`, "22023", "priority is -1, outside 0 to 9"},
		{`priority => 10`, "22023", "priority is 10, outside 0 to 9"},
		{`max_attempts => 0`, "22023", "max_attempts is 0, less than 1"},
		{`run_at => 'infinity'`, "22023", "run_at is outside the years 1 to 9999"},
		{`run_at => '10000-01-01Z'`, "22023", "run_at is outside the years 1 to 9999"},
		{`expires_at => '-infinity'`, "22023", "expires_at is outside the years 1 to 9999"},
		{`expires_at => '0001-01-01Z BC'`, "22023", "expires_at is outside the years 1 to 9999"},
		{`run_at => '2030-01-02', expires_at => '2030-01-01'`, "22023", "expires_at is before run_at"},
		{`call_data => to_jsonb(repeat('x', 262143))`, "54000", "call_data has 262145 bytes, of at most 262144"},
		{`call_data => '[1e131071, 1e131071]'`, "54000", "call_data has 262148 bytes, of at most 262144"},
		{`call_data => '{"a": }'`, "22P02", "invalid input syntax for type json"},
		{`call_data => '"\u0000"'`, "22P05", "unsupported Unicode escape sequence"},
		{`cost => 9223372036854775808`, "42883", "does not exist"},
		{`prio => 1`, "42883", "does not exist"},
	} {
		_, err := enqueueCall(t, pool, c.args)
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pgErr.Code != c.code || !strings.Contains(pgErr.Message, c.says) {
			t.Errorf("%s: got %v, want %s: %s", c.args, err, c.code, c.says)
		}
	}
	if n := count(t, owner); n != 0 {
		t.Errorf("%d calls were written, want none", n)
	}
}

// What dispatchers take, the function takes. What a session says of itself lifts nothing.
//
//callq:guarantee 13
func TestEnqueueCallMaxData(t *testing.T) {
	t.Parallel()
	_, owner := newClient(t)
	config := enqueuer(t, owner).Config()
	config.ConnConfig.RuntimeParams["callq.max_data"] = "600000"
	pool := open(t, config)
	takes := func(bytes int) {
		t.Helper()
		if _, err := enqueueCall(t, pool, `call_data => to_jsonb(repeat('x', $1))`, bytes-2); err != nil {
			t.Error(err)
		}
		if _, err := enqueueCall(t, pool, `call_data => to_jsonb(repeat('x', $1))`, bytes-1); err == nil {
			t.Errorf("%d bytes and one more were taken", bytes)
		}
	}
	takes(262144)
	ledgertest.Exec(t, owner, `INSERT INTO callq.call_meta (name, position) VALUES ('max_data', 300000)`)
	takes(300000)
}

func TestEnqueueCallDuplicate(t *testing.T) {
	t.Parallel()
	client, owner := newClient(t)
	pool := enqueuer(t, owner)
	enqueue := func(args string) enqueued {
		t.Helper()
		answer, err := enqueueCall(t, pool, args)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	first := enqueue(`unique_key => 'u'`)
	want := enqueued{first.ID, true}
	for _, args := range []string{
		`unique_key => 'u'`, `queue => NULL, unique_key => 'u'`, `queue => 'default', unique_key => 'u'`,
	} {
		if got := enqueue(args); got != want {
			t.Errorf("%s: got %+v, want %+v", args, got, want)
		}
	}
	id, err := client.Insert(t.Context(), callqueue.Call{UniqueKey: "u"})
	if id != first.ID || !errors.Is(err, callqueue.ErrDuplicate) {
		t.Errorf("the Go client: %d, %v", id, err)
	}
	if got := enqueue(`queue => 'other', unique_key => 'u'`); got.Duplicate {
		t.Error("another queue's is a duplicate")
	}
	ledgertest.Exec(t, owner, `INSERT INTO call_queue (queue, unique_key) VALUES (NULL, 'null')`)
	if got := enqueue(`unique_key => 'null'`); !got.Duplicate {
		t.Error("a queue that is NULL is not the default one")
	}
	ledgertest.Exec(t, owner, endSQL, "u")
	if got := enqueue(`unique_key => 'u'`); got.Duplicate || got.ID == first.ID {
		t.Errorf("after the first ended: %+v", got)
	}
}

// It runs with its owner's rights, and its caller cannot slip it anything of its own.
func TestEnqueueCallSearchPath(t *testing.T) {
	t.Parallel()
	_, owner := newClient(t)
	ledgertest.Exec(t, owner, `GRANT CREATE ON SCHEMA public TO PUBLIC`) // as it was before Postgres 15
	conn, err := enqueuer(t, owner).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		`CREATE TEMP TABLE call_queue (id bigint)`,
		`CREATE FUNCTION public.octet_length(text) RETURNS integer LANGUAGE sql AS 'SELECT 0/0'`,
		`CREATE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'`,
		`SET search_path = pg_temp, public, pg_catalog`,
		`SELECT FROM public.enqueue_call('http', unique_key => 'u')`,
		`SELECT FROM public.enqueue_call('http', unique_key => 'u')`,
		`DROP FUNCTION public.octet_length(text)`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if n := count(t, owner); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

// The call that is in the way ends, again and again, at any moment: each answer is an id, an id is
// inserted once, and a duplicate's is one that was.
func TestEnqueueCallWhileCallsEnd(t *testing.T) {
	t.Parallel()
	_, owner := newClient(t)
	pool := enqueuer(t, owner)
	const each = 200
	answers, errs := make([][]enqueued, 8), make([]error, 8)
	var ending sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		ending.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = owner.Exec(t.Context(), endSQL, "u")
				}
			}
		})
	}
	together(len(answers), func(i int) {
		for range each {
			answer, err := enqueueCall(t, pool, `unique_key => 'u'`)
			errs[i] = errors.Join(errs[i], err)
			answers[i] = append(answers[i], answer)
		}
	})
	close(stop)
	ending.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	inserted, duplicates := map[int64]int{}, map[int64]bool{}
	for _, list := range answers {
		for _, a := range list {
			if a.Duplicate {
				duplicates[a.ID] = true
			} else {
				inserted[a.ID]++
			}
		}
	}
	for id, times := range inserted {
		if times != 1 {
			t.Errorf("call %d was inserted %d times", id, times)
		}
	}
	for id := range duplicates {
		if inserted[id] == 0 {
			t.Errorf("call %d is a duplicate's, and nobody inserted it", id)
		}
	}
	if n := count(t, owner); n != len(inserted) || len(inserted) < 2 || len(duplicates) < 2 {
		t.Errorf("%d calls; %d were inserted, and %d of them had duplicates", n, len(inserted), len(duplicates))
	}
}

// A duplicate of what is not committed waits for it: it goes on where that rolls back, has its id where
// it commits; under REPEATABLE READ it is told to try again rather than left to go round.
func TestEnqueueCallWaits(t *testing.T) {
	t.Parallel()
	_, owner := newClient(t)
	pool := enqueuer(t, owner)
	for _, c := range []struct {
		name   string
		commit bool
		level  pgx.TxIsoLevel
		code   string
	}{
		{"rolled back", false, pgx.ReadCommitted, ""},
		{"committed", true, pgx.ReadCommitted, ""},
		{"rolled back, repeatable read", false, pgx.RepeatableRead, ""},
		{"committed, repeatable read", true, pgx.RepeatableRead, "40001"},
	} {
		const sql = `SELECT id, duplicate FROM enqueue_call(unique_key => $1)`
		tx := begin(t, pool)
		var held, got enqueued
		if err := tx.QueryRow(t.Context(), sql, c.name).Scan(&held.ID, &held.Duplicate); err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() {
			second <- pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: c.level}, func(tx pgx.Tx) error {
				return tx.QueryRow(t.Context(), sql, c.name).Scan(&got.ID, &got.Duplicate)
			})
		}()
		ledgertest.AwaitLocks(t, owner, 1)
		end := tx.Rollback
		if c.commit {
			end = tx.Commit
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := <-second
		if c.code != "" {
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != c.code {
				t.Errorf("%s: got %v, want %s", c.name, err, c.code)
			}
			continue
		}
		if err != nil || got.Duplicate != c.commit || (got.ID == held.ID) != c.commit {
			t.Errorf("%s: %+v held, then %+v, %v", c.name, held, got, err)
		}
	}
}

// together runs n at once, from one gate.
func together(n int, run func(i int)) {
	var done sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		done.Go(func() {
			<-gate
			run(i)
		})
	}
	close(gate)
	done.Wait()
}
