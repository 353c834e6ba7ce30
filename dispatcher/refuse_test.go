package dispatcher_test

import (
	"strings"
	"testing"
	"time"
)

// What a plain INSERT may hold that can never be called is failed by the claim, with the reason:
// it has no attempt and uses no unit.
//
//callq:guarantee 12
func TestRefuse(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cases := []struct{ name, columns, values, reason string }{
		{"priority above", "priority", "42", "priority 42 is not within 0 to 9"},
		{"priority below", "priority", "-1", "priority -1 is not within 0 to 9"},
		{"cost of nothing", "cost", "0", "cost 0 is below 1"},
		{"negative cost", "cost", "-5", "cost -5 is below 1"},
		{"no attempts allowed", "max_attempts", "0", "max_attempts 0 is below 1"},
		{"expired", "expires_at", "'2020-01-01T00:00:00Z'", "expired: not sent by 2020-01-01 00:00:00+00"},
	}
	r := rules(sliding("api", 100, time.Hour))
	s.once(r)
	for _, c := range cases {
		s.exec(`INSERT INTO call_queue (unique_key, ` + c.columns + `) VALUES ('` + strings.ReplaceAll(c.name, "'", "") + `', ` + c.values + `)`)
	}
	fine := []string{
		`INSERT INTO call_queue (priority, cost, max_attempts, key, expires_at) VALUES (0, 9223372036854775807, 1, repeat('é', 127), 'infinity')`,
		`INSERT INTO call_queue (priority) VALUES (9)`,
	}
	for _, sql := range fine {
		s.exec(sql)
	}
	if err := s.another(r).Poll(t.Context()); err != nil { // no sweeper is before it
		t.Fatal(err)
	}
	for i, c := range cases {
		status := one[string](s, `SELECT status || ': ' || coalesce(error_message, '') FROM call_queue WHERE id = $1`, i+1)
		if status != "failed: "+c.reason {
			t.Errorf("%s: %q, want it failed: %s", c.name, status, c.reason)
		}
	}
	s.want(`SELECT count(*) = $1 FROM call_queue WHERE status = 'failed' AND attempts = 0 AND failed_count = 0 AND unique_key IS NULL
		AND failed_at IS NOT NULL AND finished_at IS NOT NULL`, len(cases))
	s.want(`SELECT count(*) = 0 FROM call_attempts`)
	s.want(`SELECT count(*) = $1 FROM callq.call_open`, len(fine))
	if got := s.used(); got != int64(len(fine)) {
		t.Errorf("%d units are used, want %d", got, len(fine))
	}
	s.verify()
}

// Calls that cannot be made do not use up the room of a claim: those behind them go in the same tick.
func TestRefusedDoNotBlock(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (cost) SELECT 0 FROM generate_series(1, 50)`)
	s.calls("default", 3)
	s.once(rules(sliding("api", 2, time.Hour)))
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{51,52}' FROM callq.call_open`)
	s.want(`SELECT count(*) = 50 FROM call_queue WHERE status = 'failed'`)
}

func TestExplicitNullsAreDefaults(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts)
		VALUES (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)`)
	s.exec(`INSERT INTO call_queue (priority) VALUES (6), (4)`)
	s.once(rules())
	s.want(`SELECT queue = 'default' AND task = 'http' AND key = '' AND cost = 1 AND attempt = 1 FROM callq.call_open WHERE call_id = 1`)
	s.once(rules())
	s.want(`SELECT count(*) = 3 FROM callq.call_open`)
}

// The first of a queue to go are those of the smallest priority, then those that were due first.
func TestOrder(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (priority, run_at) VALUES (9, '2020-01-01'), (5, '2020-01-02'), (NULL, '2020-01-01'), (0, now()), (5, '-infinity')`)
	r := rules(sliding("api", 4, time.Hour))
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{2,3,4,5}' FROM callq.call_open`)
	for units, want := range map[int64]string{2: "{4,5}", 3: "{3,4,5}"} {
		s.exec(`TRUNCATE callq.call_open, call_attempts`)
		s.exec(`UPDATE call_queue SET status = 'new', attempts = 0, dispatched_at = NULL`)
		r.Limits[0].Rate.Units = units
		s.once(r)
		s.want(`SELECT array_agg(call_id ORDER BY call_id) = $1 FROM callq.call_open`, want)
	}
}

// Calls that nobody can take yet wait, whatever their priority, and hold up nobody.
//
//callq:guarantee 3
func TestWaitWithoutBlocking(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (queue, task, priority, run_at) VALUES
		('not in the rules', 'http', 0, now()),
		('default', 'nobody handles it', 0, now()),
		('default', 'http', 0, now() + interval '1 hour'),
		('default', 'http', 0, 'infinity'),
		('default', 'http', 9, now()),
		('never', 'http', 0, 'infinity'),
		('long ago', 'http', 5, '-infinity')`)
	r := rules(sliding("api", 100, time.Hour))
	r.Queues = append(r.Queues, queue("never", "api"), queue("long ago", "api"))
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{5,7}' FROM callq.call_open`)
	s.want(`SELECT count(*) = 5 FROM call_queue WHERE status = 'new' AND attempts = 0`)
	// More than one claim looks at.
	s.exec(`INSERT INTO call_queue (task, priority) SELECT 'nobody handles that', 0 FROM generate_series(1, 300)`)
	s.exec(`INSERT INTO call_queue (priority) VALUES (9)`)
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{5,7,308}' FROM callq.call_open`)
	s.exec(`UPDATE call_queue SET run_at = now() WHERE id = 3`)
	s.aliveIn("late", 5, "nobody handles it", "http")
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{2,3,5,7,308}' FROM callq.call_open`)
	s.verify()
}
