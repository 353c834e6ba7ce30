package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// What commands print of one thing is in the singular, and of two in the plural.
func TestPlurals(t *testing.T) {
	t.Parallel()
	const nouns = `(call|attempt|unit|slot|queue|limit|problem|violation|worker|dispatcher|flow|row|time|rule|thing|duplicate|answer)`
	one, more := regexp.MustCompile(`(?:^|[^\w.,])1 `+nouns+`s\b`), regexp.MustCompile(`(?:^|[^\w.,])2 `+nouns+`\b`)
	for n := 1; n <= 2; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.config = fmt.Sprintf("limits: {api: {rate: %d/1h}}\nqueues: {default: {limits: [api], max_attempts: 1}}\n", n)
			w.do("config", "apply")
			insert := func(status string) {
				w.exec(fmt.Sprintf(`INSERT INTO call_queue (status, finished_at) SELECT '%s', CASE WHEN '%[1]s' <> 'new' THEN now() END FROM generate_series(1, %d)`, status, n))
			}
			insert("new")
			said := w.do("status") + w.do("limits", "list") + w.do("calls", "why", fmt.Sprint(n)) + w.do("queues", "pause", "default") + w.run("doctor", "--timeout", "1s").stdout
			w.do("queues", "resume", "default")
			// The first are taken for sent, by an attempt each that uses the limit up.
			w.exec(fmt.Sprintf(`UPDATE callq.call_limits SET complete_since = now() - interval '1 day';
				INSERT INTO callq.call_usage SELECT name, '', now() + interval '1 minute', 1, %d FROM callq.call_limits`, n))
			said += w.do("status") + w.do("limits", "list") + w.do("calls", "why", "1") + w.run("calls", "wait", "1", "--timeout", "10ms").stderr
			said += w.do("calls", "cancel", "--all", "--yes")
			insert("done")
			said += w.run("verify").stdout + w.do("maintain", "retention") + w.run("calls", "cancel", fmt.Sprint(2*n), "--yes").stderr
			w.exec(fmt.Sprintf(`INSERT INTO callq.call_meta (name, at, position) VALUES ('verified', now(), %d);
				INSERT INTO callq.call_flows (queue, key, priority, task, calls, tail) SELECT 'default', 'k' || i, 5, 'http', 3, 1 FROM generate_series(1, %[1]d) i;
				INSERT INTO callq.call_routes (number, rule, goes_on) VALUES (1, 'r', false);
				INSERT INTO callq.call_routed (rule, failed, error) VALUES ('r', %[1]d, 'no')`, n))
			said += w.run("doctor", "--timeout", "1s").stdout + w.do("status")
			if wrong := one.FindAllString(said, -1); wrong != nil {
				t.Errorf("%q in\n%s", wrong, said)
			}
			if wrong := more.FindAllString(said, -1); wrong != nil {
				t.Errorf("%q in\n%s", wrong, said)
			}
			want := map[int][]string{
				1: {"1 call waits", "of 1 unit (1 per 1h, sliding window) is occupied", "cancelled 1 of 1 call\n", "1 of 1 call was not cancelled", "1 violation of a rule", "found 1 problem", "1 flow that does not add up", "a route left 1 call as it was", "0 unstarted attempts recalled"},
				2: {"2 calls wait", "of 2 units (2 per 1h, sliding window) are occupied", "cancelled 2 of 2 calls\n", "1 of 1 call was not cancelled", "2 violations of a rule", "found 2 problems", "2 flows that do not add up", "a route left 2 calls as they were", "0 unstarted attempts recalled"},
			}[n]
			for _, text := range want {
				if !strings.Contains(said, text) {
					t.Errorf("nothing says %q in\n%s", text, said)
				}
			}
		})
	}
}
