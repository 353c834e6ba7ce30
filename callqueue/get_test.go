package callqueue_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger/ledgertest"
)

// The rows are what an ORM or psql may write; the JSON is what `calls get -o json` promises.
func TestGetPlainSQL(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	for _, c := range []struct {
		name, columns, values string
		want                  string
	}{
		{
			"explicit NULLs are the defaults",
			"queue, task, key, call_data, cost, priority, created_at, run_at, expires_at, unique_key, max_attempts",
			"NULL, NULL, NULL, NULL, NULL, NULL, '2030-01-02 03:04:05.6+01', NULL, NULL, NULL, NULL",
			`"queue":"default","task":"http","key":"","status":"new","running":false,"attempts":0,"failed_count":0,` +
				`"error_message":null,"code":null,"took_ms":null,"result":null,"created_at":"2030-01-02T02:04:05.6Z","dispatched_at":null,"finished_at":null,` +
				`"priority":5,"cost":1,"run_at":"2030-01-02T02:04:05.6Z","expires_at":null,"unique_key":null,` +
				`"call_data":{},"max_attempts":null}`,
		},
		{
			"infinity and far years are the nearest that JSON has",
			"created_at, run_at, expires_at, dispatched_at, finished_at",
			"'-infinity', 'infinity', 'infinity', '0044-03-15 BC', '20000-01-01'",
			`"queue":"default","task":"http","key":"","status":"new","running":false,"attempts":0,"failed_count":0,` +
				`"error_message":null,"code":null,"took_ms":null,"result":null,"created_at":"0001-01-01T00:00:00Z","dispatched_at":"0001-01-01T00:00:00Z",` +
				`"finished_at":"9999-12-31T23:59:59.999999Z","priority":5,"cost":1,"run_at":"9999-12-31T23:59:59.999999Z",` +
				`"expires_at":"9999-12-31T23:59:59.999999Z","unique_key":null,"call_data":{},"max_attempts":null}`,
		},
		{
			"what a dispatcher will refuse",
			"created_at, status, priority, cost, max_attempts, call_data, error_message, unique_key",
			"'2030-01-01Z', 'new', -7, -1, -2, 'null', 'why', ''",
			`"queue":"default","task":"http","key":"","status":"new","running":false,"attempts":0,"failed_count":0,` +
				`"error_message":"why","code":null,"took_ms":null,"result":null,"created_at":"2030-01-01T00:00:00Z","dispatched_at":null,"finished_at":null,` +
				`"priority":-7,"cost":-1,"run_at":"RUN","expires_at":null,"unique_key":null,"call_data":null,"max_attempts":-2}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var id int64
			err := pool.QueryRow(t.Context(), "INSERT INTO call_queue ("+c.columns+") VALUES ("+c.values+") RETURNING id").Scan(&id)
			if err != nil {
				t.Fatal(err)
			}
			record, err := client.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(record)
			if err != nil {
				t.Fatal(err)
			}
			_, text, _ := strings.Cut(string(got), ",")
			want := strings.ReplaceAll(c.want, "RUN", record.RunAt.Format("2006-01-02T15:04:05.999999Z07:00"))
			if "{"+text != "{"+want {
				t.Errorf("got\n%s, want\n%s", text, want)
			}
		})
	}
}

func TestGetAttempts(t *testing.T) {
	t.Parallel()
	client, pool := newClient(t)
	id, err := client.Insert(t.Context(), callqueue.Call{})
	if err != nil {
		t.Fatal(err)
	}
	see := func(step string, running bool, result string) {
		t.Helper()
		got, err := client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if got.Running != running || string(got.Result) != result {
			t.Errorf("%s: running %v, result %q; want %v, %q", step, got.Running, got.Result, running, result)
		}
	}
	ledger := func(attempt int, result any) {
		ledgertest.Exec(t, pool, `INSERT INTO call_attempts
			(call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged, result)
			VALUES ($1, $2, 1, now(), now(), 'error', 'default', 'http', '', '[]', $3)`, id, attempt, result)
	}
	see("new", false, "")
	ledgertest.Exec(t, pool, `INSERT INTO callq.call_open
		(call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		VALUES ($1, 1, 1, 1, 1, now(), now(), now(), '', '', 'default', 'http', '', '{}', '{}', '{}')`, id)
	see("claimed", false, "")
	ledgertest.Exec(t, pool, `UPDATE callq.call_open SET started_at = now()`)
	see("started", true, "")
	ledgertest.Exec(t, pool, `DELETE FROM callq.call_open`)
	ledger(1, `{"status": 500}`)
	see("first ended", false, `{"status": 500}`)
	ledger(2, `{"status": 200}`)
	see("second ended", false, `{"status": 200}`)
	ledger(3, nil)
	see("third left nothing", false, "")
}
