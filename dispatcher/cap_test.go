package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5/pgconn"
)

// capped is a queue that lets so many calls wait, in all and of each key.
func capped(most, perKey int64, whenFull string) policy.Policy {
	r := rules()
	r.Queues[0].MaxWaiting, r.Queues[0].MaxWaitingPerKey, r.Queues[0].WhenFull = most, perKey, whenFull
	return r
}

// capInForce applies rules, and has recovery count what waits. Transactions of other databases are older, too.
func (s *system) capInForce(r policy.Policy) {
	s.t.Helper()
	s.publish(r)
	for counted := false; !counted && s.t.Context().Err() == nil; counted = one[bool](s, `SELECT counted FROM callq.call_caps WHERE $1`, true) {
		s.once(r)
	}
}

// sumsAreRight checks callq.call_waiting against the calls.
func (s *system) sumsAreRight() {
	s.t.Helper()
	s.want(`
		SELECT coalesce((SELECT sum(calls) FROM callq.call_waiting WHERE NOT of_key), 0) = count(*)
		FROM call_queue WHERE status IN ('new', 'error') AND coalesce(queue, 'default') = 'default'`)
	s.want(`
		SELECT NOT EXISTS (
			SELECT FROM (SELECT key, sum(calls) AS n FROM callq.call_waiting WHERE of_key GROUP BY key) w
			FULL JOIN (
				SELECT coalesce(key, '') AS key, count(*) AS n FROM call_queue
				WHERE status IN ('new', 'error') AND coalesce(queue, 'default') = 'default' GROUP BY 1
			) q USING (key)
			WHERE coalesce(w.n, 0) <> coalesce(q.n, 0) AND (SELECT most_of_key FROM callq.call_caps) IS NOT NULL)`)
}

// A full queue refuses what is inserted, all of a statement or nothing, however it is written; and takes calls again once some wait no
// longer, whatever has become of them.
func TestCapRefuses(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.calls("default", 3) // before it has a cap
	s.publish(capped(10, 0, ""))
	s.exec(`INSERT INTO callq.call_pauses (what, name, until, reason, at, by) VALUES ('queue', 'default', 'infinity', 'test', now(), 'test')`)
	s.capInForce(capped(10, 0, ""))
	s.sumsAreRight()
	client, err := callqueue.New(s.pool)
	if err != nil {
		t.Fatal(err)
	}
	full := func(what string, err error) {
		t.Helper()
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "CQ001" || !strings.Contains(pg.Message, "of at most 10") || !strings.Contains(pg.Hint, "Nothing was written") {
			t.Errorf("%s: %v", what, err)
		}
	}
	waiting := func(want int64) {
		t.Helper()
		b, err := client.Backlog(t.Context(), "")
		if err != nil || b.Waiting != want || b.Cap != 10 {
			t.Errorf("%+v (%v); want %d of 10", b, err, want)
		}
		s.sumsAreRight()
	}
	for range 6 {
		if _, err := client.Insert(t.Context(), callqueue.Call{}); err != nil {
			t.Fatal(err)
		}
	}
	waiting(9)
	_, err = client.InsertMany(t.Context(), make([]callqueue.Call, 2))
	if full("a batch", err); !errors.Is(err, callqueue.ErrFull) {
		t.Errorf("not ErrFull: %v", err)
	}
	waiting(9)
	_, err = s.pool.Exec(t.Context(), `INSERT INTO call_queue (queue, status) VALUES (NULL, 'new'), ('', '')`)
	full("explicit NULLs and empty texts", err)
	s.exec(`INSERT INTO call_queue (queue) VALUES ('other'), ('default')`)
	_, err = client.Insert(t.Context(), callqueue.Call{UniqueKey: "u"})
	full("one", err)
	_, err = s.pool.Exec(t.Context(), `SELECT enqueue_call()`)
	full("enqueue_call", err)
	waiting(10)

	for what, sql := range map[string]string{
		"cancelled":     `UPDATE call_queue SET status = 'cancelled', finished_at = now() WHERE id = 1`,
		"deleted":       `DELETE FROM call_queue WHERE id = 2`,
		"moved":         `UPDATE call_queue SET queue = 'other' WHERE id = 3`,
		"claimed":       `UPDATE call_queue SET status = 'dispatched', attempts = attempts + 1 WHERE id = -1`,
		"another key":   `UPDATE call_queue SET key = 'k' WHERE id = 4`,
		"another place": `UPDATE call_queue SET priority = 1 WHERE id = 4`,
	} {
		s.exec(sql)
		t.Log(what)
		s.sumsAreRight()
	}
	waiting(7)
	s.exec(`DELETE FROM callq.call_pauses`)
	s.alive(4)
	s.once(capped(10, 0, ""))
	s.want(`SELECT count(*) = 4 FROM callq.call_open`)
	waiting(3)
	s.start(time.Minute)
	s.exec(`DELETE FROM call_queue WHERE status = 'cancelled'`)
	waiting(3)
}

// A key has a cap of its own; what is too much can be discarded instead, and stays in sight.
func TestCapDiscards(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]string{"discard_new": "{1,2,3,6}", "discard_oldest": "{3,4,5,6}"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			r := capped(0, 3, how)
			s.capInForce(r)
			s.exec(`INSERT INTO call_queue (key) SELECT 'a' FROM generate_series(1, 2)`)
			s.exec(`INSERT INTO call_queue (key) SELECT 'a' FROM generate_series(1, 3)`)
			s.exec(`INSERT INTO call_queue (key) VALUES ('b')`)
			s.want(`SELECT array_agg(id ORDER BY id) = $1::bigint[] FROM call_queue WHERE status = 'new'`, want)
			s.want(`SELECT count(*) = 2 AND bool_and(error_message LIKE 'discarded: its key had 3 calls waiting%max_waiting_per_key%' AND finished_at IS NOT NULL)
				FROM call_queue WHERE status = 'cancelled'`)
			s.sumsAreRight()
			s.alive(100)
			s.once(r)
			s.want(openIDs, want)
			s.sumsAreRight()
			s.verify()
		})
	}
}

// Many producers that commit, roll back and are killed fill a cap, and no slot of it is lost: at the end as many can be inserted as were
// taken out. It is exceeded by no more than one statement of each that runs at once.
func TestCapUnderProducers(t *testing.T) {
	t.Parallel()
	const most, producers, each = 100, 8, 5
	s := newSystem(t)
	r := capped(most, 0, "")
	s.capInForce(r)
	wait := make(chan error, producers)
	for p := range producers {
		go func() {
			for turn := range 60 {
				tx, err := s.pool.Begin(context.WithoutCancel(t.Context()))
				if err != nil {
					wait <- err
					return
				}
				_, err = tx.Exec(t.Context(), fmt.Sprintf(`INSERT INTO call_queue (key) SELECT '%d' FROM generate_series(1, %d)`, p, each))
				if pg, is := errors.AsType[*pgconn.PgError](err); err != nil && (!is || pg.Code != "CQ001") {
					wait <- err
					return
				}
				switch turn % 3 {
				case 0:
					err = tx.Rollback(t.Context())
				case 1:
					_ = tx.Conn().Close(t.Context()) // as if it had been killed
					_ = tx.Rollback(t.Context())
					err = nil
				default:
					_ = tx.Commit(t.Context()) // a refused one rolls back
					_, err = s.pool.Exec(t.Context(), `DELETE FROM call_queue WHERE id IN (SELECT id FROM call_queue ORDER BY random() LIMIT 7 FOR UPDATE SKIP LOCKED)`)
				}
				if err != nil {
					wait <- err
					return
				}
			}
			wait <- nil
		}()
	}
	for range producers {
		if err := <-wait; err != nil {
			t.Fatal(err)
		}
	}
	s.want(`SELECT count(*) <= $1 FROM call_queue`, most+producers*each)
	s.sumsAreRight()
	s.exec(`DELETE FROM call_queue`)
	s.sumsAreRight()
	s.calls("default", most)
	if _, err := s.pool.Exec(t.Context(), `INSERT INTO call_queue DEFAULT VALUES`); err == nil {
		t.Error("one more than the cap is inserted")
	}
	s.want(`SELECT count(*) <= 65 FROM callq.call_waiting`) // they are added up
}
