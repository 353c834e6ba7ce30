package dispatcher_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
)

// However often calls are deleted and retention runs while a limit is full, no unit comes free.
//
//callq:guarantee 4 12
func TestRetentionFreesNothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 5, time.Hour))
	s.calls("default", 5)
	s.once(r)
	s.start(time.Hour)
	s.finish(1, 2, 3)
	s.calls("default", 20)
	for range 5 {
		s.exec(`DELETE FROM call_queue WHERE status = 'done'`)
		s.exec(`DELETE FROM call_queue WHERE id = 4`) // running
		retired, err := maintenance.Purge(t.Context(), s.pool, maintenance.Retention{Done: 1, Failed: 1, Cancelled: 1})
		if err != nil || retired.Attempts != 0 {
			t.Fatalf("Retain = %+v, %v; want no ledger row gone", retired, err)
		}
		s.once(r)
		if got := s.used(); got != 5 {
			t.Fatalf("%d units are given out, want 5", got)
		}
	}
	s.finish()
	s.once(r)
	s.want(`SELECT count(*) = 5 FROM call_attempts`)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	// A second limit on the queue is counted from a ledger that still has all.
	r = rules(sliding("api", 5, time.Hour), sliding("second", 6, time.Hour))
	s.once(r)
	s.want(`SELECT sum(used) = 5 FROM callq.call_usage WHERE limit_name = 'second'`)
	s.verify()
}

func TestRetain(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.publish(rules(sliding("api", 5, time.Hour)))
	// By status: ended a while ago, ended just now.
	s.exec(`INSERT INTO call_queue (status, finished_at) SELECT status, now() - age FROM
		unnest('{new,error,dispatched,done,failed,cancelled}'::text[]) WITH ORDINALITY AS s (status, n),
		unnest('{23 h,25 h,167 h,169 h,719 h,721 h}'::interval[]) AS age ORDER BY n, age`)
	// One was cancelled while it ran, and still runs.
	s.exec(`INSERT INTO call_queue (status, finished_at) VALUES ('cancelled', now() - interval '1 year')`)
	s.opens(`SELECT max(id) AS id FROM call_queue`)
	if retired := s.retain(); retired.Calls != 3+1+5 {
		t.Errorf("%d calls are retired, want 9", retired.Calls)
	}
	s.want(`SELECT string_agg(n::text, ',' ORDER BY status) = '2,6,3,6,5,6' FROM (
		SELECT coalesce(s.status, '') AS status, count(q.id) AS n FROM unnest('{cancelled,dispatched,done,error,failed,new}'::text[]) AS s (status)
		LEFT JOIN call_queue q ON q.status = s.status GROUP BY s.status) x`)
}

// Answers go when they are older than their queue keeps them, and nothing else of the ledger does.
func TestRetentionOfAnswers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	short := queue("short")
	short.StoreFor = time.Hour
	s.publish(policy.Policy{Queues: []policy.Queue{short, queue("default")}})
	s.exec(`INSERT INTO call_queue (queue, status, finished_at, attempts) SELECT CASE WHEN n > 2600 THEN 'default' ELSE 'short' END, 'done', now(), 1 FROM generate_series(1, 2700) n`)
	s.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged, result)
		SELECT id, 1, 1, now() - interval '1 day', now() - interval '1 day', now() - interval '1 day', now() - id % 2 * interval '61 min', 'done', queue, 'http', '', '[]', '{}' FROM call_queue`)
	found, err := maintenance.DryRun(t.Context(), s.pool, maintenance.Retention{})
	if purged := s.retain(); err != nil || purged != found || purged != (maintenance.Purged{Results: 1300}) {
		t.Errorf("purged %+v, a dry run found %+v, %v", purged, found, err)
	}
	s.want(`SELECT count(*) FILTER (WHERE result IS NULL) = 1300 AND count(*) = 2700 AND bool_and(result IS NOT NULL OR queue = 'short' AND call_id % 2 = 1) FROM call_attempts`)
}

func (s *system) retain() maintenance.Purged {
	s.t.Helper()
	retired, err := maintenance.Purge(context.Background(), s.pool, maintenance.Retention{})
	if err != nil {
		s.t.Fatal(err)
	}
	return retired
}

// A call that another table refers to stays, and no other for its sake.
//
//callq:guarantee 12
func TestRetentionPassesOver(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() - interval '1 year' FROM generate_series(1, 2500)`)
	s.exec(`CREATE TABLE orders (call bigint REFERENCES call_queue (id))`)
	s.exec(`INSERT INTO orders VALUES (700), (2500)`)
	retired := s.retain()
	if retired.Calls != 2498 || retired.Kept != 2 || !strings.Contains(retired.KeptFor, "foreign key") {
		t.Errorf("retired %+v, want all but two, for a foreign key", retired)
	}
	s.want(`SELECT array_agg(id ORDER BY id) = '{700,2500}' FROM call_queue`)
	s.exec(`DELETE FROM orders`)
	if retired := s.retain(); retired.Calls != 2 {
		t.Errorf("then retired %+v, want the two", retired)
	}
	s.exec(`INSERT INTO call_queue (id, status, finished_at) OVERRIDING SYSTEM VALUE SELECT i, 'done', now() - interval '1 year' FROM generate_series(1, 400) AS i`)
	s.exec(`INSERT INTO orders SELECT id FROM call_queue`)
	if retired := s.retain(); retired.Kept != 400 {
		t.Errorf("with all of them referred to: %+v", retired)
	}
}

// A ledger row goes when its call is gone and twice the longest window has passed since; the mark
// then says how far back the ledger is whole.
func TestRetainLedger(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.publish(rules(sliding("api", 5, time.Hour), sliding("second", 5, time.Second)))
	insert := func(call, n int64, age string, sent bool) {
		s.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
			SELECT $1, $2, 1, now(), now(), CASE WHEN $4 THEN now() - $3::interval END, now() - $3::interval, 'done', 'default', 'http', '', '[]'`, call, n, age, sent)
	}
	s.calls("default", 1)
	insert(1, 1, "10 hours", true)    // its call exists
	insert(1001, 1, "131 min", true)  // old enough: twice an hour and ten minutes
	insert(1001, 2, "129 min", true)  // not yet
	insert(1002, 1, "131 min", false) // never sent: no mark
	insert(1003, 1, "20 hours", true) // an attempt of it is open
	s.opens(`SELECT 1003 AS id`)
	if retired := s.retain(); retired.Attempts != 2 {
		t.Errorf("%d attempts are retired, want 2", retired.Attempts)
	}
	s.want(`SELECT array_agg(call_id || '/' || attempt ORDER BY call_id, attempt) = '{1/1,1001/2,1003/1}' FROM call_attempts`)
	s.want(`SELECT count(*) = 1 AND min(at) BETWEEN now() - interval '132 min' AND now() - interval '131 min' FROM callq.call_meta WHERE name = 'ledger'`)
	if retired := s.retain(); retired.Attempts != 0 {
		t.Errorf("the second time, %d attempts are retired", retired.Attempts)
	}
}

// Many rows go in batches, whatever the ids skip and however many attempts a call has, also when
// several run at once. No transaction removes more than a batch: none is long.
func TestRetainInBatches(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() - interval '1 year' FROM generate_series(1, 3500)`)
	s.exec(`UPDATE call_queue SET finished_at = now() WHERE id % 500 = 0`)
	s.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
		SELECT id, n, 1, now(), now() - interval '1 year', 'not_sent', 'default', 'http', '', '[]'
		FROM call_queue, generate_series(1, CASE id WHEN 2001 THEN 1500 WHEN 999 THEN 3 ELSE 1 END) AS n`)
	s.exec(`CREATE TABLE removals (tx xid8, n bigint)`)
	s.exec(`GRANT INSERT ON removals TO PUBLIC`)
	s.exec(`CREATE FUNCTION note_removal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO removals SELECT pg_current_xact_id(), count(*) FROM gone; RETURN NULL; END $$`)
	for _, table := range []string{"call_queue", "call_attempts"} {
		s.exec(`CREATE TRIGGER note AFTER DELETE ON ` + table + ` REFERENCING OLD TABLE AS gone
			FOR EACH STATEMENT EXECUTE FUNCTION note_removal()`)
	}
	s.retain()
	// But for what is left of the call that fills more than a batch.
	s.want(`SELECT count(*) = 7 FROM call_queue`)
	s.want(`SELECT count(*) = 7 + 500 AND count(*) FILTER (WHERE call_id = 2001) = 500 FROM call_attempts`)
	var parts sync.WaitGroup
	for range 3 {
		parts.Go(func() { s.retain() })
	}
	parts.Wait()
	s.want(`SELECT count(*) = 7 FROM call_attempts`)
	s.want(`SELECT max(n) <= 1000 AND sum(n) = 3493 + 4994 FROM (SELECT sum(n) AS n FROM removals GROUP BY tx) t`)
}

// What a run that was cut off has removed stays removed, and the next run removes the rest.
func TestRetainGoesOn(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() - interval '1 year' FROM generate_series(1, 5500)`)
	s.exec(`CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM call_queue) <= 4000 THEN RAISE 'stopped' USING ERRCODE = 'query_canceled'; END IF; RETURN NULL; END $$`)
	s.exec(`CREATE TRIGGER stop AFTER DELETE ON call_queue FOR EACH STATEMENT EXECUTE FUNCTION stop()`)
	retired, err := maintenance.Purge(t.Context(), s.pool, maintenance.Retention{})
	if err == nil || retired.Calls != 1000 {
		t.Errorf("retired %d calls before it was stopped (%v), want 1000", retired.Calls, err)
	}
	s.exec(`DROP TRIGGER stop ON call_queue`)
	if retired := s.retain(); retired.Calls != 4500 {
		t.Errorf("%d calls are retired, want the other 4500", retired.Calls)
	}
}

// Versions of limits go with the ledger: those stay that an attempt was claimed under, that came later, or that
// a window may need; and the last of each limit always. verify knows what was in force when, before and after.
//
//callq:guarantee 6 13
func TestRetentionPrunesVersions(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 5, time.Hour), sliding("other", 5, time.Hour))
	s.calls("default", 1)
	s.once(r)
	s.start(time.Hour)
	s.finish()
	for _, units := range []int64{6, 7, 8} {
		s.set(units, time.Hour)
	}
	s.want(`SELECT count(*) = 5 FROM callq.call_limit_versions`)
	// Version n of api is from so many days ago; the call was made under the second.
	s.exec(`UPDATE callq.call_limit_versions SET effective_from = now() - (50 - 10 * version) * interval '1 day'`)
	s.exec(`UPDATE callq.call_limit_versions SET effective_from = now() - interval '40 days' WHERE limit_name = 'other'`)
	s.exec(`DELETE FROM callq.call_audit`) // of then it says nothing
	s.exec(`DELETE FROM callq.call_usage`)
	const ago = ` - interval '25 days'`
	s.exec(`UPDATE call_attempts SET claimed_at = claimed_at` + ago + `, started_at = started_at` + ago + `, arrived_by = arrived_by` + ago + `, finished_at = finished_at` + ago + `,
		charged = (SELECT jsonb_agg(jsonb_set(c, '{until}', to_jsonb((c->>'until')::timestamptz` + ago + `))) FROM jsonb_array_elements(charged) c)`)
	s.exec(`UPDATE call_queue SET dispatched_at = dispatched_at` + ago + `, finished_at = finished_at` + ago)
	retain := func(done time.Duration, want string) {
		t.Helper()
		if _, err := maintenance.Purge(t.Context(), s.pool, maintenance.Retention{Done: done}); err != nil {
			t.Fatal(err)
		}
		s.want(`SELECT string_agg(limit_name || version, ' ' ORDER BY limit_name, version) = $1 FROM callq.call_limit_versions`, want)
		s.verify()
	}
	s.verify()
	retain(1000*24*time.Hour, "api2 api3 api4 other1")
	retain(time.Hour, "api4 other1")
	s.set(9, time.Hour) // numbers go on
	retain(time.Hour, "api4 api5 other1")
}

// What a dry run counts is what retention then removes, and counting removes nothing.
func TestRetirable(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.publish(rules(sliding("api", 5, time.Hour)))
	s.exec(`INSERT INTO call_queue (status, finished_at) SELECT (ARRAY['done','failed','cancelled','new'])[1 + n % 4],
		CASE WHEN n % 4 < 3 THEN now() - n * interval '1 hour' END FROM generate_series(1, 3500) AS n`)
	s.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, arrived_by, finished_at, outcome, queue, task, key, charged)
		SELECT id, n, 1, now(), finished_at, coalesce(finished_at, now()), 'done', 'default', 'http', '', '[]'
		FROM call_queue, generate_series(1, 1 + id % 3) AS n`)
	s.exec(`DELETE FROM call_queue WHERE id % 10 = 0`) // whose attempts go all the same, when they are old enough
	s.opens(`SELECT 3001 AS id`)
	rows := one[int64](s, `SELECT (SELECT count(*) FROM call_queue) + (SELECT count(*) FROM call_attempts)`)

	found, err := maintenance.DryRun(t.Context(), s.pool, maintenance.Retention{})
	if err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT (SELECT count(*) FROM call_queue) + (SELECT count(*) FROM call_attempts) = $1`, rows)
	if retired := s.retain(); retired != found || found.Calls == 0 || found.Attempts == 0 {
		t.Errorf("it counted %+v, and %+v were removed", found, retired)
	}
	if found, err = maintenance.DryRun(t.Context(), s.pool, maintenance.Retention{}); err != nil || found != (maintenance.Purged{}) {
		t.Errorf("nothing is left, and it counts %+v, %v", found, err)
	}
}
