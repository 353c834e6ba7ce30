package dispatcher_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// settable gives the system's connections a clock of Postgres's that the test sets: statements that
// ask for clock_timestamp() find the test's function before the server's.
func (s *system) settable() {
	s.t.Helper()
	s.exec(`CREATE SCHEMA clock`)
	s.exec(`CREATE TABLE clock.gain (by interval)`)
	s.exec(`INSERT INTO clock.gain VALUES ('0')`)
	s.exec(`GRANT USAGE ON SCHEMA clock TO PUBLIC`)
	s.exec(`GRANT SELECT ON clock.gain TO PUBLIC`)
	s.clockIs(`pg_catalog.clock_timestamp() + (SELECT by FROM clock.gain)`)
	config := s.owner.Config()
	config.ConnConfig.RuntimeParams["search_path"] = "clock, public, pg_catalog"
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	s.owner, s.pool = pool, pgtest.AsDaemon(s.t, pool)
}

func (s *system) clockIs(expression string) {
	s.t.Helper()
	s.exec(`CREATE OR REPLACE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
		AS $body$ SELECT ` + expression + ` $body$`)
}

// still stops the clock that settable gives, ahead of all that the server's own clock stamps: no test is too slow
// for what follows.
func (s *system) still() {
	s.t.Helper()
	s.settable()
	s.clockIs(`timestamptz '` + one[string](s, `SELECT (clock_timestamp() + interval '1 h')::text`) + `'`)
}

func (s *system) setClock(by time.Duration) {
	s.t.Helper()
	s.exec(`UPDATE clock.gain SET by = by + $1`, by)
}

// What was under way when the clock was set forward stays occupied for as long as it would have: a
// gain is remembered for a window and for what was under way.
//
//callq:guarantee 1
func TestClockSetForward(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.settable()
	s.alive(100)
	api := sliding("api", 1, time.Second)
	api.Anchor, api.SendWithin, api.Slack = limit.AnchorStart, time.Minute, time.Minute
	d := s.dispatcher(rules(api))
	s.calls("default", 2)
	s.turn(d)
	s.start(time.Hour)
	s.setClock(time.Minute)
	s.turn(d)
	// By the clock 122 s have passed since the start, in truth 62: the unit is occupied for 126.
	s.setClock(0)
	s.exec(`UPDATE callq.call_open SET claimed_at = claimed_at - interval '62 s', started_at = started_at - interval '62 s'`)
	s.turn(d)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_open SET claimed_at = claimed_at - interval '65 s', started_at = started_at - interval '65 s'`)
	s.turn(d)
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)
}

// What one process saw the clock gain the next knows, as `dispatch --once` is each time. Two that see the same step do
// not add it up.
//
//callq:guarantee 1
func TestClockSetForwardBeforeARestart(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.settable()
	s.alive(100)
	r := rules(sliding("api", 1, time.Minute))
	first, second := s.dispatcher(r), s.another(r)
	s.calls("default", 2)
	s.turn(first)
	s.turn(second)
	s.start(time.Second)
	s.exec(`UPDATE callq.call_open SET acked_at = started_at`)
	s.setClock(70 * time.Second)
	s.turn(first)
	s.turn(second)
	s.turn(s.another(r))
	s.want(`SELECT count(*) = 1 AND bool_and(attempt = 1) FROM (SELECT attempt FROM callq.call_open UNION ALL SELECT attempt FROM call_attempts) a`)
	// By each one's measure it is some milliseconds more or less.
	s.want(`SELECT sum(by) BETWEEN '69 s' AND '71 s' FROM callq.call_clock_gains`)
}

// Two that write it down together wait for one another: neither holds a lock already that the other's excludes.
//
//callq:guarantee 1
func TestClockSetForwardSeenByTwo(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.settable()
	r := rules(sliding("api", 1, time.Minute))
	both := []*dispatcher.Dispatcher{s.dispatcher(r), s.another(r)}
	for _, d := range both {
		s.turn(d)
	}
	s.setClock(70 * time.Second)
	third := s.hold(`LOCK TABLE callq.call_clock_gains IN SHARE ROW EXCLUSIVE MODE`)
	var noted sync.WaitGroup
	for _, d := range both {
		noted.Go(func() { s.tick(d) })
	}
	s.eventually(waitingSQL, len(both))
	s.release(third)
	noted.Wait()
	s.want(`SELECT sum(by) BETWEEN '69 s' AND '71 s' FROM callq.call_clock_gains`)
}

// What a failover loses of it, who saw it writes down again.
//
//callq:guarantee 1
func TestClockSetForwardBeforeAFailover(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.settable()
	r := rules(sliding("api", 1, time.Minute))
	d := s.dispatcher(r)
	s.turn(d)
	s.setClock(70 * time.Second)
	s.turn(d)
	const written = `SELECT sum(by) BETWEEN '69 s' AND '71 s' FROM callq.call_clock_gains`
	s.want(written)
	s.exec(`DELETE FROM callq.call_clock_gains`)
	s.failOver()
	s.turn(d)
	s.want(written)
	s.turn(d)
	s.want(written)
}

// A limit that may lack units after a failover does so for as long, though the clock is set forward.
func TestClockSetForwardWhileShut(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.settable()
	s.alive(100)
	r := rules(sliding("api", 1, time.Minute))
	s.publish(r)
	s.calls("default", 1)
	s.exec(`UPDATE callq.call_limits SET epoch = 'older'`)
	d := s.dispatcher(r)
	for range 3 {
		s.turn(d)
		s.setClock(70 * time.Second)
	}
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.want(`SELECT missing_until < clock.clock_timestamp() FROM callq.call_limits`) // by the clock it is over
}

// That the clock was set back is written down: the ledger's times are out of order.
func TestClockSetBackIsNoted(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.settable()
	s.alive(100)
	d := s.dispatcher(rules(sliding("api", 1, time.Minute)))
	s.calls("default", 2)
	s.turn(d)
	s.setClock(-time.Minute)
	s.turn(d)
	s.want(`SELECT count(*) = 1 AND bool_and(by BETWEEN '-70 s' AND '-60 s') FROM callq.call_clock_gains`)
}

// A claim within which the clock is set back gives nothing out: what started since it read the clock
// may seem to be long over.
func TestClockSetBackWithinAClaim(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.settable()
	s.alive(100)
	r := rules(sliding("api", 5, time.Second))
	s.once(r)
	s.calls("default", 2)
	s.exec(`CREATE SEQUENCE clock.readings`)
	s.exec(`GRANT USAGE ON SEQUENCE clock.readings TO PUBLIC`)
	s.clockIs(`pg_catalog.clock_timestamp() + interval '1 day' - nextval('clock.readings') * interval '1 s'`)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.clockIs(`pg_catalog.clock_timestamp() + interval '1 day'`)
	s.once(r)
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)
}

// An attempt's start is never before its claim, whatever the clock says, and its deadline follows it.
func TestStartAfterAStepBack(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.settable()
	s.alive(100)
	s.calls("default", 1)
	s.once(rules(sliding("api", 5, time.Second)))
	s.setClock(-time.Minute)
	s.start(5 * time.Second)
	s.want(`SELECT started_at = claimed_at AND deadline = started_at + interval '6 s' FROM callq.call_open`)
}

// However late a request's last byte was written, its first was within send_within: the charge never
// reaches further than while the attempt was open.
func TestChargeOfASlowBody(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	api := sliding("api", 5, time.Hour)
	api.Anchor, api.SendWithin, api.Slack = limit.AnchorStart, time.Second, 2*time.Second
	s.calls("default", 1)
	s.once(rules(api))
	s.start(time.Hour)
	var c ledger.Closing
	if err := s.pool.QueryRow(t.Context(), `SELECT call_id, attempt, token FROM callq.call_open`).Scan(&c.CallID, &c.Attempt, &c.Token); err != nil {
		t.Fatal(err)
	}
	c.Outcome, c.Status = callqueue.OutcomeError, callqueue.StatusFailed
	c.Arrival = &limit.Arrival{Written: time.Minute, Closed: time.Minute}
	if _, err := new(ledger.Closer).Close(t.Context(), s.pool, []ledger.Closing{c}); err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT arrived_by = started_at + interval '8 s' FROM call_attempts`)
}

// What a former server gave out is not closed as unsent by anything: it may have been started there.
func TestOlderEpochIsNotTakenBack(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 5, time.Hour))
	s.calls("default", 2)
	s.once(r)
	s.exec(`UPDATE callq.call_open SET epoch = 'older'`)
	unsent := ledger.Closing{
		CallID: 1, Attempt: 1, Unstarted: true, Outcome: callqueue.OutcomeNotSent, Status: callqueue.StatusNew,
	}
	if closed, err := new(ledger.Closer).Close(t.Context(), s.pool, []ledger.Closing{unsent}); err != nil || len(closed) != 0 {
		t.Errorf("closed %v as unsent (%v)", closed, err)
	}
	if recalled, err := ledger.Pause(t.Context(), s.pool, ledger.Paused{What: "limit", Name: "api"}); err != nil || recalled != 0 {
		t.Errorf("%d were recalled (%v)", recalled, err)
	}
	s.want(`SELECT count(*) = 2 FROM callq.call_open`)
	s.once(r)
	s.want(`SELECT count(*) = 2 AND bool_and(outcome = 'lost' AND jsonb_array_length(charged) = 1) FROM call_attempts`)
}
