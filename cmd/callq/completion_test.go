package main

import (
	"strings"
	"testing"
	"time"
)

// Shells complete the names of limits, queues, tasks and statuses; of a Postgres that is away, none.
func TestCompletion(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ('w', 'p', '{sms}', '{}', 1, now(), now())`)
	w.exec("INSERT INTO callq.call_limits SELECT (jsonb_populate_record(l, '{\"name\": \"a\\tb\"}')).* FROM callq.call_limits l WHERE name = 'stripe'")
	completes := func(w world, line, want string) {
		t.Helper()
		begun := time.Now()
		a := w.run(append([]string{"__complete"}, strings.Split(line, " ")...)...)
		names, _, _ := strings.Cut(a.stdout, ":")
		names = strings.TrimPrefix(names, "--reason\twhy nothing is missing, for the audit and verify\n") // of limits open, which needs it
		if got := strings.Join(strings.Fields(names), " "); got != want || a.code != 0 {
			t.Errorf("callq %s: completes %q, want %q; exit code %d, stderr %s", line, got, want, a.code, a.stderr)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("callq %s: it took %s", line, took)
		}
	}
	const limits, queues, tasks = "sockets stripe", "payments", "http sms"
	for _, verb := range []string{"get", "set", "reset", "pause", "resume", "open", "forecast", "history", "replay", "advise"} {
		completes(w, "limits "+verb+" ", limits)
		completes(w, "limits "+verb+" st", "stripe")
		completes(w, "limits "+verb+" stripe ", "")
	}
	for line, want := range map[string]string{
		"queues pause ": queues, "queues resume ": queues, "queues forecast ": queues, "calls list --queue ": queues, "calls errors --queue ": queues,
		"enqueue --queue ": queues, "calls retry --queue pay": "payments", "routes test --task ": tasks, "calls list --task ": tasks, "enqueue ": tasks,
		"calls list --status ": "new dispatched done error failed cancelled", "calls list --status new,d": "new,dispatched new,done",
		"calls list --status new,failed,": "new,failed,dispatched new,failed,done new,failed,error new,failed,cancelled", "status -o ": "table json jsonl", "calls get ": "",
	} {
		completes(w, line, want)
	}
	w.postgres = "postgres://10.255.255.1/nowhere"
	completes(w, "limits get ", "")
	w.postgres = "postgres://127.0.0.1:1/nowhere"
	completes(w, "queues pause ", "")
	w.config = "limits: nothing"
	completes(w, "calls list --task ", "")
}
