package dispatcher_test

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/maintenance"
)

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
	s.exec(`INSERT INTO call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		VALUES (3001, 9, 0, 1, 1, now(), now(), now(), callq_epoch(), 'http', 'default', 'http', '', '{}', '{}', '{}')`)
	rows := one[int64](s, `SELECT (SELECT count(*) FROM call_queue) + (SELECT count(*) FROM call_attempts)`)

	batches := 0
	found, err := maintenance.DryRun(t.Context(), s.pool, maintenance.Retention{}, func(maintenance.Purged) { batches++ })
	if err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT (SELECT count(*) FROM call_queue) + (SELECT count(*) FROM call_attempts) = $1`, rows)
	s.want(`SELECT count(*) = 0 FROM call_meta WHERE name LIKE 'retire%'`)
	if want := 4 + 7; batches < want {
		t.Errorf("%d batches, want %d at least: 1000 rows each", batches, want)
	}
	if retired := s.retain(); retired != found || found.Calls == 0 || found.Attempts == 0 {
		t.Errorf("it counted %+v, and %+v were removed", found, retired)
	}
	if found, err = maintenance.DryRun(t.Context(), s.pool, maintenance.Retention{}, nil); err != nil || found != (maintenance.Purged{}) {
		t.Errorf("nothing is left, and it counts %+v, %v", found, err)
	}
}

// No transaction of retention removes more than a batch, however much there is: none is long.
func TestRetainInShortTransactions(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() - interval '1 year' FROM generate_series(1, 4200)`)
	s.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
		SELECT id, n, 1, now(), now() - interval '1 year', 'not_sent', 'default', 'http', '', '[]' FROM call_queue, generate_series(1, 2) AS n`)
	s.exec(`CREATE TABLE removals (tx xid8, n bigint)`)
	s.exec(`GRANT INSERT ON removals TO PUBLIC`)
	s.exec(`CREATE FUNCTION note_removal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO removals SELECT pg_current_xact_id(), count(*) FROM gone; RETURN NULL; END $$`)
	for _, table := range []string{"call_queue", "call_attempts"} {
		s.exec(strings.ReplaceAll(`CREATE TRIGGER note AFTER DELETE ON %table REFERENCING OLD TABLE AS gone
			FOR EACH STATEMENT EXECUTE FUNCTION note_removal()`, "%table", table))
	}
	told := 0
	retired, err := maintenance.Purge(t.Context(), s.pool, maintenance.Retention{}, func(maintenance.Purged) { told++ })
	if err != nil || retired != (maintenance.Purged{Calls: 4200, Attempts: 8400}) {
		t.Fatalf("retired %+v, %v", retired, err)
	}
	s.want(`SELECT max(n) <= 1000 AND sum(n) = 12600 FROM (SELECT sum(n) AS n FROM removals GROUP BY tx) t`)
	if told < 14 {
		t.Errorf("progress was told %d times", told)
	}
}
