package witness_test

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/witness"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A worker says that something is missing exactly if its last heartbeat is, or a start that it was told of since.
func TestWord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose  string
		lacks bool
	}{
		"nothing is missing":                   {`SELECT`, false},
		"the last heartbeat is":                {`UPDATE callq.call_workers SET heartbeat_at = heartbeat_at - interval '1 us'`, true},
		"the worker's row is":                  {`DELETE FROM callq.call_workers`, true},
		"a heartbeat came that was not heard":  {`UPDATE callq.call_workers SET heartbeat_at = heartbeat_at + interval '1 s'`, false},
		"the last start is":                    {`UPDATE callq.call_open SET started_at = NULL, token = NULL, worker = NULL WHERE call_id = 3`, true},
		"its claim is":                         {`DELETE FROM callq.call_open WHERE call_id = 3`, true},
		"another started it here":              {`UPDATE callq.call_open SET worker = 'other' WHERE call_id = 3`, true},
		"a start that others followed is gone": {`DELETE FROM callq.call_open WHERE call_id = 2`, false}, // as when it has ended and was purged
		"the last start has ended": {`WITH ended AS (DELETE FROM callq.call_open WHERE call_id = 3 RETURNING *)
			INSERT INTO public.call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, worker, charged)
			SELECT call_id, attempt, cost, claimed_at, started_at, now(), 'done', queue, task, key, worker, '[]' FROM ended`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := lived(t)
			ledgertest.Exec(t, w.pool, c.lose)
			w.failOver()
			for range 2 { // the second time it is a heartbeat like any other
				w.beat()
				w.says(c.lacks)
			}
		})
	}
}

// What is said stays said, though the answer was lost and the worker says it again.
func TestWordIsKept(t *testing.T) {
	t.Parallel()
	w := lived(t)
	ledgertest.Exec(t, w.pool, `DELETE FROM callq.call_workers`)
	w.failOver()
	unheard := w.Witness
	w.beat()
	w.Witness = unheard
	w.beat()
	w.says(true)
}

// Of starts that were under way at once, any may have been written last.
func TestStartsAtOnce(t *testing.T) {
	t.Parallel()
	w := lived(t)
	one, other := w.Ask(), w.Ask()
	w.start(other, 4)
	w.start(one, 5) // its answer comes last
	ledgertest.Exec(t, w.pool, `DELETE FROM callq.call_open WHERE call_id = 4`)
	w.failOver()
	w.beat()
	w.says(true)
}

// A worker that begins has nothing to say.
func TestBegins(t *testing.T) {
	t.Parallel()
	w := lived(t)
	w.Witness = &witness.Witness{}
	w.beat()
	var silent bool
	if err := w.pool.QueryRow(t.Context(), `SELECT lacks IS NULL AND epoch = callq.epoch() FROM callq.call_workers`).Scan(&silent); err != nil || !silent {
		t.Error(silent, err)
	}
}

type worker struct {
	*testing.T
	*witness.Witness
	pool *pgxpool.Pool
}

// lived is a worker that was told of three starts, the last two of which no heartbeat followed.
func lived(t *testing.T) *worker {
	t.Helper()
	w := &worker{t, &witness.Witness{}, pgtest.New(t)}
	ledgertest.Exec(t, w.pool, `CREATE OR REPLACE FUNCTION callq.epoch() RETURNS text LANGUAGE sql STABLE AS $$ SELECT '1-1' $$`)
	ledgertest.Exec(t, w.pool, `INSERT INTO call_queue (queue) SELECT 'default' FROM generate_series(1, 5)`)
	ledgertest.Exec(t, w.pool, `UPDATE call_queue SET status = 'dispatched', attempts = 1`)
	ledgertest.Exec(t, w.pool, `INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key,
		limits, keys, costs) SELECT id, 1, 0, 1, 1, now(), now(), now() + interval '1 h', callq.epoch(), 'http', 'default', 'http', '', '{}', '{}', '{}' FROM call_queue`)
	w.beat()
	w.start(w.Ask(), 1)
	w.beat()
	w.start(w.Ask(), 2)
	w.start(w.Ask(), 3)
	return w
}

func (w *worker) start(asked, call int64) {
	w.Helper()
	answers, err := ledger.Start(w.Context(), w.pool, "w", []ledger.StartRequest{{CallID: call, Attempt: 1, Token: call, Timeout: time.Minute}})
	if err != nil || answers[0].Refused != nil {
		w.Fatal(answers, err)
	}
	w.Started(asked, answers)
}

func (w *worker) beat() {
	w.Helper()
	if _, err := w.Heartbeat(w.Context(), schema.Names{}.In(w.pool), witness.Row{ID: "w", Pool: "http", Tasks: []string{"http"}}); err != nil {
		w.Fatal(err)
	}
}

func (w *worker) failOver() {
	ledgertest.Exec(w.T, w.pool, `CREATE OR REPLACE FUNCTION callq.epoch() RETURNS text LANGUAGE sql STABLE AS $$ SELECT '1-2' $$`)
}

func (w *worker) says(lacks bool) {
	w.Helper()
	var said bool
	if err := w.pool.QueryRow(w.Context(), `SELECT lacks FROM callq.call_workers WHERE epoch = '1-2' AND former = '1-1'`).Scan(&said); err != nil || said != lacks {
		w.Errorf("lacks %t, want %t: %v", said, lacks, err)
	}
}
