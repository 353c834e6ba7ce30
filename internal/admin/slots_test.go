package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/pgtest"
)

// A call that waits for a slot of workers says so. When it starts goes by how long attempts of the queues that have the slots
// usually run, whether they share limits with its own or not; where that is not known, nobody says.
func TestWhyWaitsForASlot(t *testing.T) {
	t.Parallel()
	const next = "nothing holds it up"
	const slots = "all slots of its workers are taken: 4 of 4 run"
	for _, c := range []struct {
		name        string
		open        int    // attempts of queue slow, the first of which
		ran         string // started so long ago
		usual       string // they take so long; empty: none ended
		reason      string
		least, most time.Duration // until it starts; most 0: unknown
		because     string
	}{
		{"all run", 4, "1 s", "3 s", slots, 1500 * time.Millisecond, 3 * time.Second, "0 calls before it, 4 slots of workers"},
		{"all run for long", 4, "3.5 s", "3 s", slots, 300 * time.Millisecond, 4 * time.Second, "0 calls before it, 4 slots of workers"},
		{"all run for just as long", 4, "3 s", "3 s", slots, 200 * time.Millisecond, 2 * time.Second, "0 calls before it, 4 slots of workers"},
		{"none ended yet", 4, "1 s", "", slots, 0, 0, "unknown: all slots of its workers are taken, 4 of 4, and nobody knows when one comes free"},
		{"one is free", 3, "1 s", "3 s", next, 0, time.Second, "in about 0 ms: 0 calls before it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			exec(t, pool, `INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost)
				SELECT name, '{}', '', 3, '1 s', '1 m', '1 m', 'retry' FROM unnest('{slow,other}'::text[]) q (name)`)
			exec(t, pool, `INSERT INTO callq.call_dispatchers VALUES ('d', 'host/1', '', now() + interval '1 h')`)
			exec(t, pool, `INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
				VALUES ('w', 'http', '{http}', '{}', 4, now(), now() + interval '1 h'), ('m', 'mail', '{mail}', '{}', 4, now(), now() + interval '1 h')`)
			exec(t, pool, fmt.Sprintf(`INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, deadline, token, worker, epoch, pool, queue, task, key, limits, keys, costs)
				SELECT 100 + i, 1, 0, i, 1, now(), now(), now(), clock_timestamp() - interval '%s' * (5 - i) / 4, clock_timestamp() + interval '1 m', 1, 'w', callq.epoch(), 'http', 'slow', 'http', '', '{}', '{}', '{}'
				FROM generate_series(1, %d) i`, c.ran, c.open))
			if c.usual != "" {
				exec(t, pool, fmt.Sprintf(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
					SELECT 200 + i, 1, 1, now() - interval '%s', now() - interval '%s', now(), now(), 'done', 'slow', 'http', '', '[]' FROM generate_series(1, 10) i`, c.usual, c.usual))
			}
			exec(t, pool, `INSERT INTO call_queue (queue) VALUES ('other')`)
			client, err := callqueue.New(pool)
			if err != nil {
				t.Fatal(err)
			}
			call, err := client.Get(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			asked := time.Now()
			why, err := Explain(t.Context(), pool, call)
			if err != nil || len(why.Reasons) != 1 || !strings.Contains(why.Reasons[0].Text, c.reason) || !strings.Contains(why.Because, c.because) {
				t.Fatalf("%+v, %v, want %q because %q", why, err, c.reason, c.because)
			}
			if (why.StartsAt == nil) != (c.most == 0) {
				t.Fatalf("it starts at %v", why.StartsAt)
			}
			if why.StartsAt != nil && (why.StartsAt.Sub(asked) < c.least || why.StartsAt.Sub(asked) > c.most) {
				t.Errorf("it starts in %s: %s, want %s to %s", why.StartsAt.Sub(asked), why.Because, c.least, c.most)
			}
		})
	}
}
