package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
)

// elsewhere is the world of another callq in the same database and on the same Redis, whose logins find nothing by a search_path.
func (w world) elsewhere() world {
	w.postgres += "&options=-c%20search_path%3Dpg_catalog"
	w.config += "postgres: {schema: second, table_schema: The shop}\n"
	w.do("migrate", "up")
	return w
}

// Two callqs share a database. Neither sees, makes, counts, wakes or removes anything of the other.
func TestTwoCallqsInOneDatabase(t *testing.T) {
	t.Parallel()
	const calls = 600
	first, _ := newWorld(t).withRedis()
	first.config = atAnyPort + "limits: {api: {rate: 300/1s}}\nqueues: {default: {limits: [api]}}\n"
	second := first.elsewhere()
	both := []world{first, second}
	var requests [2]atomic.Int64
	var waits sync.WaitGroup
	for i, w := range both {
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests[i].Add(1) }))
		t.Cleanup(server.Close)
		w.startReady("serve")
		pool, err := pgxpool.New(t.Context(), w.postgres)
		must(t, err)
		t.Cleanup(pool.Close)
		client, err := callqueue.New(pool, [][]callqueue.Option{nil, {callqueue.Schemas("second", "The shop")}}[i]...)
		must(t, err)
		batch := make([]callqueue.Call, calls-2)
		for n := range batch {
			batch[n] = callqueue.Call{Data: map[string]string{"url": server.URL}}
		}
		ids, err := client.InsertMany(t.Context(), batch)
		must(t, err)
		one, err := client.Insert(t.Context(), callqueue.Call{UniqueKey: "u", Data: map[string]string{"url": server.URL}})
		must(t, err)
		tx, err := pool.Begin(t.Context())
		must(t, err)
		other, err := client.InsertTx(t.Context(), tx, callqueue.Call{Data: map[string]string{"url": server.URL}})
		must(t, err)
		must(t, tx.Commit(t.Context()))
		waits.Go(func() {
			_, err := client.WaitMany(t.Context(), append(ids, one, other)...)
			if err != nil {
				t.Error(err)
			}
		})
	}
	waits.Wait()
	for i, table := range []string{`public.call_queue`, `"The shop".call_queue`} {
		if n := one[int](first, `SELECT count(*) FROM `+table+` WHERE status = 'done'`); n != calls {
			t.Errorf("callq %d has %d calls that are done", i+1, n)
		}
		if n := requests[i].Load(); n != calls {
			t.Errorf("%d requests of callq %d", n, i+1)
		}
	}
	if one[string](first, `SELECT position::text FROM callq.call_meta WHERE name = 'database'`) ==
		one[string](first, `SELECT position::text FROM second.call_meta WHERE name = 'database'`) {
		t.Error("both have the same names in Redis")
	}
	for _, w := range both {
		w.do("verify")
	}
}

// A wake is heard in its own callq alone.
func TestWakesOfTwoCallqs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.elsewhere()
	conn := w.connect()
	for _, sql := range []string{`LISTEN callq_wake`, `LISTEN second_wake`, `INSERT INTO "The shop".call_queue DEFAULT VALUES`, `NOTIFY callq_wake, 'last'`} {
		_, err := conn.Exec(t.Context(), sql)
		must(t, err)
	}
	for _, want := range []string{"second_wake", "callq_wake last"} {
		n, err := conn.WaitForNotification(t.Context())
		must(t, err)
		if got := n.Channel; got != want && got+" "+n.Payload != want {
			t.Errorf("heard %s %q, want %s", got, n.Payload, want)
		}
	}
}

// Every command finds a callq that stands elsewhere, without a search_path.
func TestCommandsElsewhere(t *testing.T) {
	t.Parallel()
	first, _ := newWorld(t).withRedis()
	first.config = atAnyPort + "limits: {api: {rate: 5/1h, per: key}}\nqueues: {default: {limits: [api]}}\n"
	w := first.elsewhere()
	w.do("config", "apply")
	id := w.call("http://127.0.0.1:1/", "--key", "k", "--unique", "u")
	for _, args := range [][]string{
		{"dispatch", "--once"},
		{"calls", "list"},
		{"calls", "get", id},
		{"calls", "why", id},
		{"calls", "list", "--code", "500"},
		{"queues", "list"},
		{"queues", "pause", "default"},
		{"queues", "resume", "default"},
		{"limits", "list"},
		{"limits", "get", "api"},
		{"limits", "set", "api", "9/1h"},
		{"limits", "forecast", "api"},
		{"limits", "reset", "api"},
		{"limits", "pause", "api", "--for", "1s"},
		{"limits", "resume", "api"},
		{"limits", "open", "api", "--reason", "a test", "--yes"},
		{"status"},
		{"verify"},
		{"doctor"},
		{"maintain", "status"},
		{"maintain", "retention", "--dry-run"},
		{"maintain", "retention"},
		{"maintain", "vacuum"},
		{"maintain", "vacuum", "--full", "--yes"},
		{"maintain", "sweep", "--dry-run"},
		{"maintain", "sweep"},
		{"calls", "cancel", id, "--yes"},
		{"calls", "retry", id, "--yes"},
		{"calls", "delete", id, "--yes"},
		{"migrate", "status"},
		{"migrate", "sql"},
	} {
		if a := w.run(args...); a.code != 0 && (a.code != 3 || args[0] != "doctor" || !strings.Contains(a.stdout, "ok       schema\n")) {
			t.Errorf("%v: exit code %d: %s%s", args, a.code, a.stdout, a.stderr)
		}
	}
	if n := one[int](first, `SELECT (SELECT count(*) FROM callq.call_queues) + (SELECT count(*) FROM callq.call_limits) + (SELECT count(*) FROM callq.call_audit)`); n != 0 {
		t.Errorf("the other callq in the database has %d rows", n)
	}
	w.config = "postgres: {schema: Second}\n"
	w.refuses(2, "cannot name callq's own schema", "status")
}

// What stands in a schema already is not taken for this callq's.
func TestMigrateRefusesAnothersTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config = "postgres: {schema: second}\n"
	w.refuses(1, `schema "public" has a call_queue that does not belong to the callq in schema "second"`, "migrate", "up")
	if one[bool](w, `SELECT to_regnamespace('second') IS NOT NULL`) {
		t.Error("a schema was made all the same")
	}
}
