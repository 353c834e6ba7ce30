package dispatcher_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A call that expired and whose row errs keeps no other from expiring. Names that no index takes in come from before
// they were refused.
//
//callq:guarantee 12
func TestExpiryThatErrs(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const refused = `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not this one''; END'`
	s.exec(refused)
	s.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON call_queue FOR EACH ROW WHEN (NEW.key = 'bad' AND NEW.status = 'failed') EXECUTE FUNCTION refuse()`)
	s.exec(`DO $$ BEGIN
		SET LOCAL session_replication_role = replica;
		INSERT INTO call_queue (queue, key, expires_at) SELECT string_agg(md5(i::text), ''), '', '2020-01-01' FROM generate_series(1, 256) AS i;
		INSERT INTO call_queue (queue, key, expires_at) SELECT 'not in the rules', CASE i WHEN 7 THEN 'bad' ELSE '' END, '2020-01-02' FROM generate_series(1, 20) AS i;
	END $$`)
	s.once(rules())
	s.want(`SELECT count(*) = 20 FROM call_queue WHERE status = 'failed' AND error_message LIKE 'expired: %'`)
	s.want(`SELECT status = 'new' AND error_message = 'callq cannot end it: not this one' FROM call_queue WHERE key = 'bad'`)
}

// So it is with attempts that a sweeper closes; and a count of failures stays at the most that it can be.
//
//callq:guarantee 12
func TestClosingThatErrs(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.calls("default", 20)
	s.exec(`UPDATE call_queue SET failed_count = 2147483647 WHERE id = 3`)
	r := rules()
	d := s.another(r)
	s.once(r)
	s.start(time.Minute)
	s.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not this one''; END'`)
	s.exec(`CREATE TRIGGER refuse BEFORE UPDATE OF status ON call_queue FOR EACH ROW WHEN (NEW.id = 7) EXECUTE FUNCTION refuse()`)
	s.exec(`UPDATE call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)
	if err := d.Tick(t.Context()); err != nil {
		t.Error(err)
	}
	s.want(`SELECT count(*) = 19 FROM call_attempts WHERE outcome = 'lost'`)
	s.want(`SELECT failed_count = 2147483647 AND status = 'failed' FROM call_queue WHERE id = 3`)
	s.want(`SELECT status = 'dispatched' AND error_message = 'callq cannot end it: not this one' FROM call_queue WHERE id = 7`)
}

// Somebody's open transaction on the rows of some calls keeps neither the others from being swept, nor claims
// from being made; once it ends, its calls are swept too.
//
//callq:guarantee 12
func TestSweepsWaitForNobody(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.calls("default", 20)
	r := rules()
	d := s.another(r)
	s.once(r)
	s.start(time.Minute)
	s.exec(`UPDATE call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)
	s.calls("default", 5)
	holder, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var held pgx.Batch
	held.Queue(`UPDATE call_queue SET error_message = 'mine' WHERE id = 7`)
	held.Queue(`SELECT FROM call_open WHERE call_id = 9 FOR UPDATE`)
	if err := holder.SendBatch(t.Context(), &held).Close(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 3 {
		if err := d.Tick(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("three ticks took %s", took)
	}
	s.want(`SELECT count(*) = 18 FROM call_attempts WHERE outcome = 'lost'`)
	s.want(`SELECT count(*) = 5 FROM call_open WHERE call_id > 20`)
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); one[int](s, `SELECT count(*) FROM call_attempts WHERE call_id IN (7, 9)`) < 2; {
		if err := d.Tick(t.Context()); err != nil || time.Now().After(deadline) {
			t.Fatalf("%v; they are not swept, though nobody holds them", err)
		}
	}
	s.verifyLongAgo()
}
