package backlog_test

import (
	"slices"
	"testing"

	"github.com/callq/callq/internal/backlog"
)

// Whatever was done by hand to flows and inbox, a sweep sees it and mends it, and all calls come out once.
func TestRepair(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		harm         string
		calls, flows int64 // that are found astray
	}{
		"nothing":                     {`NULL`, 0, 0},
		"inbox removed":               {`DELETE FROM callq.call_inbox`, 100, 0},
		"a flow removed":              {`DELETE FROM callq.call_flows WHERE key = 'a'`, 600, 1},
		"every flow removed":          {`DELETE FROM callq.call_flows`, 900, 2},
		"a segment removed":           {`DELETE FROM callq.call_segments WHERE key = 'a' AND seq = 2`, 256, 1},
		"a flow that counts wrong":    {`UPDATE callq.call_flows SET calls = calls + 7 WHERE key = 'b'`, 0, 1},
		"a flow that stands too far":  {`UPDATE callq.call_flows SET head = head + 1 WHERE key = 'a'`, 256, 1},
		"all of it removed":           {`TRUNCATE callq.call_inbox, callq.call_flows, callq.call_segments`, 1000, 0},
		"inserts without the trigger": {`SET LOCAL session_replication_role = replica; INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 5)`, 5, 0},
		"moved without the trigger":   {`SET LOCAL session_replication_role = replica; UPDATE call_queue SET priority = 1 WHERE key = 'a'`, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			q.exec(`INSERT INTO callq.call_queues (name, limits, max_attempts, backoff_min, backoff_max, timeout, on_lost)
				VALUES ('q', '{}', 3, '1 s', '1 s', '1 s', 'retry')`)
			q.exec(`INSERT INTO call_queue (queue, key) SELECT 'q', CASE WHEN n <= 600 THEN 'a' ELSE 'b' END FROM generate_series(1, 900) AS n`)
			q.drain()
			q.exec(`INSERT INTO call_queue (queue, key) SELECT 'q', 'a' FROM generate_series(1, 100)`)
			q.exec(`DO $$ BEGIN ` + c.harm + `; END $$`)

			found, err := backlog.FindOrphans(t.Context(), q.pool)
			if want := (backlog.Orphans{Calls: c.calls, Flows: c.flows}); err != nil || found != want {
				t.Errorf("found %+v, %v, want %+v", found, err, want)
			}
			repaired, err := backlog.Repair(t.Context(), q.pool)
			if err != nil || repaired.Flows != c.flows || repaired.Calls < c.calls {
				t.Errorf("repaired %+v, %v, want %d flows and at least %d calls", repaired, err, c.flows, c.calls)
			}
			if found, err = backlog.FindOrphans(t.Context(), q.pool); err != nil || found != (backlog.Orphans{}) {
				t.Errorf("repaired, and found %+v, %v", found, err)
			}
			q.sound()
			var claimed []int64
			for some := true; some; { // one that was moved is in the inbox again when a claim has met it
				q.drain()
				now := q.claim(1000)
				claimed, some = append(claimed, now...), len(now) > 0
				q.sound()
			}
			slices.Sort(claimed)
			all := q.value(`SELECT count(*) FROM call_queue`)
			if !slices.Equal(claimed, slices.Compact(slices.Clone(claimed))) || int64(len(claimed)) != all {
				t.Errorf("%d calls were claimed of %d, or one twice", len(claimed), all)
			}
			if found, err = backlog.FindOrphans(t.Context(), q.pool); err != nil || found != (backlog.Orphans{}) {
				t.Errorf("all are claimed, and found %+v, %v", found, err)
			}
		})
	}
}

// A repair that is cut short leaves what it found: calls of a broken flow are not taken out of it before they are in the inbox.
func TestRepairIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queue (queue, key) SELECT 'q', 'a' FROM generate_series(1, 10)`)
	q.drain()
	q.exec(`UPDATE callq.call_flows SET calls = calls + 7`)
	q.exec(`ALTER TABLE callq.call_inbox ADD CONSTRAINT none CHECK (false)`)
	if repaired, err := backlog.Repair(t.Context(), q.pool); err == nil {
		t.Fatalf("repaired %+v, want an error", repaired)
	}
	if found, err := backlog.FindOrphans(t.Context(), q.pool); err != nil || found != (backlog.Orphans{Flows: 1}) {
		t.Errorf("found %+v, %v, want one broken flow that has its calls", found, err)
	}
}
