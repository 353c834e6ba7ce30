package dispatcher_test

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/policy"
)

// A lost request counts until its host has answered a later one, or, without that, arrive_within after the last that was written to
// it: one after another.
//
//callq:guarantee 1
func TestLostIsProven(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 3, time.Hour))
	s.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', 'https://API.example.com./' || i) FROM generate_series(1, 3) i`)
	s.once(r)
	s.start(30 * time.Minute)
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)
	s.once(r)
	s.want(`SELECT bool_and(outcome = 'lost' AND host = 'api.example.com:443' AND sent_by = started_at + interval '10 s' AND proof IS NULL
		AND arrived_by = '2200-01-01Z' AND charged->0->>'until' LIKE '2200-01-01%') AND count(*) = 3 FROM call_attempts`)
	s.want(`SELECT used = 3 AND bucket = '2200-01-01Z' AND shard = 0 FROM callq.call_usage`)

	// What was written before is no proof. What was written later is, up to its answer.
	s.exec(`UPDATE callq.call_hosts SET written_at = (SELECT min(sent_by) FROM call_attempts) + interval '1.99 s', answered_at = clock_timestamp()`)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM call_attempts WHERE proof IS NULL`)
	s.exec(`UPDATE callq.call_hosts SET written_at = a.sent_by + interval '2 s', answered_at = a.sent_by + interval '5 min' FROM call_attempts a WHERE a.call_id = 1`)
	s.once(r)
	s.want(`SELECT array_agg(call_id) = '{1}' AND bool_and(arrived_by = sent_by + interval '5 min' AND (charged->0->>'until')::timestamptz = arrived_by)
		FROM call_attempts WHERE proof = 'later'`)
	s.want(`SELECT sum(used) = 3 AND sum(used) FILTER (WHERE shard = 0) = 2 FROM callq.call_usage`)

	// A host that answers nothing: after ten windows one of them counts as arrived, then for as long none.
	s.exec(`UPDATE callq.call_hosts SET written_at = NULL, answered_at = NULL`)
	s.exec(`UPDATE call_attempts SET sent_by = sent_by - interval '8 h 58 min' WHERE proof IS NULL`)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM call_attempts WHERE proof = 'assumed'`)
	s.exec(`UPDATE call_attempts SET sent_by = sent_by - interval '6 hours' WHERE proof IS NULL`)
	s.once(r)
	s.once(r)
	s.want(`SELECT array_agg(call_id) = '{2}' AND bool_and(arrived_by BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp()) FROM call_attempts WHERE proof = 'assumed'`)
	s.want(`SELECT sum(used) = 3 AND sum(used) FILTER (WHERE shard = 0) = 1 FROM callq.call_usage`)
	s.exec(`UPDATE callq.call_hosts SET probed_at = probed_at - interval '16 h'`)
	s.once(r)
	s.want(`SELECT count(*) = 2 FROM call_attempts WHERE proof = 'assumed'`)

	// No queue keeps a request for a day: what is older is settled together. These are the calls' next attempts.
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '2 h' WHERE bucket < '2199-01-01'`)
	s.once(r)
	s.start(30 * time.Minute)
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)
	s.once(r)
	s.exec(`UPDATE call_attempts SET sent_by = sent_by - interval '22 h', finished_at = finished_at - interval '23 h' WHERE attempt = 2`)
	s.exec(`UPDATE callq.call_hosts SET probed_at = clock_timestamp()`)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM call_attempts WHERE attempt = 2 AND proof IS NULL AND arrived_by = '2200-01-01Z'`)
	s.exec(`UPDATE call_attempts SET sent_by = sent_by - interval '2 h', finished_at = finished_at - interval '2 h' WHERE attempt = 2`)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM call_attempts WHERE attempt = 2 AND proof = 'assumed'`)
}

// What a worker that is gone leaves open gives its units back before its deadline, once its host has answered a later request; or,
// of a host that answers nothing, one after another.
//
//callq:guarantee 1
func TestAbandonedIsOvertaken(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 3, time.Hour))
	s.exec(`INSERT INTO call_queue (call_data) SELECT '{"url": "http://example.com/x"}' FROM generate_series(1, 3)`)
	s.once(r)
	s.start(30 * time.Minute)
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '10 min'`)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM callq.call_open WHERE overtaken_at IS NULL`)
	s.want(`SELECT host = 'example.com:80' AND written_at IS NULL FROM callq.call_hosts`)
	s.exec(`UPDATE callq.call_hosts SET written_at = o.started_at + interval '13 s', answered_at = o.started_at + interval '20 s' FROM callq.call_open o WHERE o.call_id = 2`)
	s.exec(`UPDATE callq.call_open SET started_at = started_at + interval '1 s' WHERE call_id = 3`)
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{1,2}' AND bool_and(overtaken_at = (SELECT answered_at FROM callq.call_hosts)) FROM callq.call_open WHERE overtaken_at IS NOT NULL`)
	s.once(r)
	s.want(`SELECT count(*) = 1 FROM callq.call_open WHERE overtaken_at IS NULL`)
	r.Limits[0].ArriveWithin = 6 * time.Minute // up to 9
	s.once(r)
	s.want(`SELECT call_id = 3 AND overtaken_at > clock_timestamp() - interval '1 min' AND (SELECT probed_at IS NOT NULL FROM callq.call_hosts) FROM callq.call_open WHERE call_id = 3`)

	// A worker that is alive hears of answers itself.
	s.exec(`INSERT INTO callq.call_workers VALUES ('w', 'http', '{http}', '{}', 4, now(), now() + interval '1 h')`)
	s.exec(`UPDATE callq.call_open SET overtaken_at = NULL, worker = 'w'`)
	s.exec(`UPDATE callq.call_hosts SET probed_at = NULL`)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM callq.call_open WHERE overtaken_at IS NULL`)
}

// An operator who knows what has arrived lets a limit off: its requests in doubt count as arrived, those of others stay.
func TestOpenLetsOff(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 3, time.Hour), sliding("other", 3, time.Hour))
	s.exec(`INSERT INTO call_queue (call_data) SELECT '{"url": "https://example.com"}' FROM generate_series(1, 2)`)
	s.once(r)
	s.start(30 * time.Minute)
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)
	s.once(r)
	held := func(of string) string {
		return `(SELECT coalesce(sum(used), 0) FROM callq.call_usage WHERE limit_name = '` + of + `' AND bucket = '2200-01-01Z')`
	}
	s.want(`SELECT ` + held("api") + ` = 2 AND ` + held("other") + ` = 2`)
	if limits, err := admin.ReadLimits(t.Context(), s.pool); err != nil || limits[0].InDoubt != 2 || !strings.Contains(limits[0].StateText(), "2 in doubt") {
		t.Errorf("limits list: %+v, %v", limits, err)
	}
	if changes, err := policy.Open(t.Context(), s.pool, "api", ledger.Author{By: "me", Reason: "it was restarted"}); err != nil || len(changes) != 1 {
		t.Errorf("Open: %v, %v", changes, err)
	}
	s.want(`SELECT ` + held("api") + ` = 0 AND ` + held("other") + ` = 2`)
	s.want(`SELECT bool_and(arrived_by = '2200-01-01Z' AND (charged->0->>'until')::timestamptz <= clock_timestamp()
		AND (charged->1->>'until')::timestamptz = arrived_by) FROM call_attempts`)
	if changes, err := policy.Open(t.Context(), s.pool, "api", ledger.Author{By: "me", Reason: "again"}); err != nil || len(changes) != 0 {
		t.Errorf("Open again: %v, %v", changes, err)
	}
}
