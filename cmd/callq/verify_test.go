package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/callq/callq/internal/ledger/verify"
)

func TestVerifyFinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO call_queue (queue) VALUES ('q')`)
	w.exec(`UPDATE call_queue SET status = 'done', finished_at = now()`)
	a := w.run("verify")
	if a.code != exitFindings || !strings.Contains(a.stdout, "the call is done, and no attempt is") {
		t.Errorf("exit code %d:\n%s%s", a.code, a.stdout, a.stderr)
	}
	a = w.run("verify", "-o", "json")
	if r := decode[verify.Report](t, a.stdout); a.code != exitFindings || len(r.Findings) == 0 || r.Findings[0].CallID != 1 {
		t.Errorf("exit code %d, findings %+v", a.code, r.Findings)
	}
}

func TestVerifySaysWhatWasSettledAbove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO call_queue (queue, cost) VALUES ('q', 8)`)
	w.exec(`UPDATE call_queue SET status = 'done', attempts = 1, dispatched_at = now(), finished_at = now()`)
	w.exec(`INSERT INTO call_attempts (call_id, attempt, cost, settled, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
		SELECT 1, 1, 8, 12, at, at, at, at, 'done', 'q', 'mine', '', jsonb_build_array(
			jsonb_build_object('limit', 'tokens', 'key', '', 'cost', 12, 'until', at))
		FROM (SELECT finished_at FROM call_queue) q (at)`)
	w.exec(`INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, count_cost, slack, send_within, queues, applied_at, applied_by, epoch)
		VALUES ('tokens', 1, 10, '1 h', '3.6 s', true, '1 s', '1 s', '{q}', now(), 'test', callq.epoch())`)
	w.exec(`INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, count_cost, slack, send_within, queues, applied_by)
		VALUES ('tokens', 1, now() - interval '1 h', 10, '1 h', true, '1 s', '1 s', '{q}', 'test')`)
	if out := w.do("verify"); !regexp.MustCompile(`8 of 10 +4\n`).MatchString(out) || !strings.Contains(out, "every rule holds") {
		t.Errorf("verify says\n%s", out)
	}
	if use := decode[verify.Report](t, w.do("verify", "-o", "json")).Limits[0]; use.Most != 8 || use.Above != 4 {
		t.Errorf("verify says %+v", use)
	}
	has(t, w.do("calls", "get", "1", "-o", "json"), `"settled": 12`)
}

func TestVerifySaysWhatItRestsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO callq.call_clock_gains (at, by) VALUES (now(), '70 s')`)
	w.exec(`INSERT INTO callq.call_meta (name, at) VALUES ('ledger', '2026-11-01T00:00:00Z')`)
	w.exec(`INSERT INTO callq.call_audit (by, what, name, change, reason) VALUES ('ann', 'limit', 'api', 'opened', 'the API was asked')`)
	out := w.do("verify")
	has(t, out, "This rests on:", "arrived after 2026-11-01 00:00:00Z", "70 s at ", "api, by ann at ", "opened: the API was asked", "tables' owner")
	if r := decode[verify.Report](t, w.do("verify", "--since", "7d", "-o", "json")); r.Since == nil || len(r.RestsOn) < 4 {
		t.Errorf("since 7 days: %+v", r)
	}
	has(t, w.do("verify", "--since", "2026-11-20T00:00:00Z"), "2026-11-20 00:00:00Z")
	w.refuses(2, "24h", "verify", "--since", "yesterday")
}
