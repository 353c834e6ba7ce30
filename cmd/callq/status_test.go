package main

import (
	"strings"
	"testing"

	"github.com/callq/callq/internal/admin"
)

// What was cancelled, deleted or moved does not wait, though lines and news speak of it still; and where some
// queue has too many calls to look at each, those of the others are right all the same.
func TestWhatEndedDoesNotWait(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`UPDATE call_limits SET complete_since = now();
		INSERT INTO call_queue (queue, task) SELECT 'crowded', 'http' FROM generate_series(1, 10001);
		INSERT INTO call_queue (queue, task, key) SELECT 'payments', 'echo', 'k' FROM generate_series(1, 10);
		UPDATE call_queue SET status = 'cancelled', finished_at = now() WHERE queue = 'payments' AND id % 2 = 0;
		DELETE FROM call_queue WHERE queue = 'payments' AND id % 5 = 0;
		UPDATE call_queue SET key = 'moved' WHERE id = (SELECT max(id) FROM call_queue WHERE status = 'new')`)
	for _, f := range decode[[]admin.Forecast](t, w.do("limits", "forecast", "-o", "json")) {
		if f.Waiting != 4 || f.Key != nil && (*f.Key != "k" || f.OfKey != 3) {
			t.Errorf("forecast %+v, want 4 calls, 3 of them of key k", f)
		}
	}
	s := decode[admin.Status](t, w.do("status", "-o", "json"))
	for _, q := range s.Queues {
		if want := map[string]int64{"crowded": 10001, "payments": 4}[q.Name]; q.Due != want {
			t.Errorf("queue %s: %d calls are due, want %d", q.Name, q.Due, want)
		}
	}
	if len(s.Unhandled) != 2 || s.Unhandled[0] != (admin.Unhandled{Task: "echo", Waiting: 4}) || s.Unhandled[1] != (admin.Unhandled{Task: "http", Waiting: 10001}) {
		t.Errorf("tasks that nobody handles: %+v", s.Unhandled)
	}
}

// Where so many ended as they waited that none is found which is due, status says so.
func TestStatusOfCallsThatEndedInLine(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`INSERT INTO call_queue (queue) SELECT 'payments' FROM generate_series(1, 10300);
		UPDATE call_queue SET status = 'cancelled', finished_at = now() WHERE id < 10300`)
	const says = "oldest due call: none of those that stand first in line waits any more; they are counted until a claim passes them\n"
	has(t, w.do("status"), says)
	w.exec(`DELETE FROM call_queue WHERE id < 10300; UPDATE call_queue SET run_at = now() - interval '1 day'`)
	has(t, w.do("status"), "oldest due call: 10300 in payments, due 24h")
}

// A worker that handles the task does not help a queue whose label it does not carry.
func TestStatusNamesTheLabelThatNobodyCarries(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`UPDATE call_queues SET label = 'ip-a';
		INSERT INTO call_queue (queue) VALUES ('payments');
		INSERT INTO call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
		VALUES ('w', 'http', '{http}', '{ip-b}', 10, now(), now() + interval '1 hour')`)
	const says = "no live worker that carries the label ip-a handles task http: 1 calls wait\n"
	has(t, w.do("status"), says)
	w.exec(`UPDATE call_workers SET labels = '{ip-b,ip-a}'`)
	if text := w.do("status"); strings.Contains(text, "no live worker") {
		t.Errorf("status says\n%s", text)
	}
}
