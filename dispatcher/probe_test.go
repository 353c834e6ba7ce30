package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// shut closes limit api, or a key of it, for the attempt of a call that has started: for as long as the API says, 0: it does not.
func (s *system) shut(key string, call int64, after time.Duration) {
	s.t.Helper()
	err := ledger.ShutLimit(context.Background(), s.pool, ledger.Shut{
		Limit: "api", Key: key, CallID: call, Attempt: one[int32](s, `SELECT attempt FROM callq.call_open WHERE call_id = $1`, call),
		After: after, First: time.Second, Most: time.Hour, Evenly: true, Reason: "429", By: "w",
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// end ends a call's attempt so; its call waits again.
func (s *system) end(call int64, how callqueue.Outcome) {
	s.t.Helper()
	rows, _ := s.pool.Query(s.t.Context(), `SELECT attempt, token, clock_timestamp() - started_at FROM callq.call_open WHERE call_id = $1`, call)
	c, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (ledger.Closing, error) {
		c := ledger.Closing{CallID: call, Outcome: how, Status: callqueue.StatusNew}
		var took time.Duration
		err := row.Scan(&c.Attempt, &c.Token, &took)
		if how != callqueue.OutcomeNotSent {
			c.Requests, c.Code, c.Arrival = new(int16(1)), 429, &limit.Arrival{By: &took, Written: took, EndBy: &took}
		}
		return c, err
	})
	_, closed := new(ledger.Closer).Close(s.t.Context(), s.pool, []ledger.Closing{c})
	if err := errors.Join(err, closed); err != nil {
		s.t.Fatal(err)
	}
}

const openIDs = `SELECT coalesce(array_agg(call_id ORDER BY call_id), '{}') = $1::bigint[] FROM callq.call_open`

// reopen has the time pass that the limits are closed for.
func (s *system) reopen() {
	s.exec(`UPDATE callq.call_pauses SET until = clock_timestamp() - interval '10 ms'`)
	s.exec(`INSERT INTO callq.call_inbox (queue, at, key) SELECT 'default', clock_timestamp(), key FROM callq.call_pauses WHERE key <> ''`) // its flows are parked
	s.exec(`UPDATE callq.call_open SET started_at = started_at - interval '1 s', claimed_at = claimed_at - interval '1 s'`)
}

// refused opens and starts n calls under rules, closes limit api, or a key of it, for the first, and ends them as refused.
func (s *system) refused(r policy.Policy, key string, n int64) {
	s.t.Helper()
	s.once(r)
	s.start(time.Minute)
	s.shut(key, 1, 0)
	for call := range n {
		s.end(call+1, callqueue.OutcomeRefused)
	}
}

// A limit that the API closed opens by one call: the others wait for its answer. While the API refuses, each spell is twice as long.
func TestProbe(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 100, time.Hour))
	s.calls("default", 3)
	s.once(r)
	s.start(time.Minute)
	s.want(openIDs, "{1,2,3}")
	for call := range int64(3) { // of one burst: the spell is the first
		s.shut("", call+1, 0)
	}
	s.want(`SELECT spell = '1 s' AND until BETWEEN at + interval '0.99 s' AND at + interval '1.01 s' AND count(*) OVER () = 1 FROM callq.call_pauses`)
	s.want(`SELECT count(*) = 1 FROM callq.call_audit WHERE change LIKE 'closed%' AND reason = '429'`)
	for call := range int64(3) {
		s.end(call+1, callqueue.OutcomeRefused)
	}
	s.want(`SELECT bool_and(status = 'new' AND failed_count = 0) FROM call_queue`)
	s.once(r)
	s.want(openIDs, "{}")

	for _, spell := range []string{"2 s", "4 s", "8 s"} {
		s.reopen()
		s.once(r)
		s.once(r)
		s.want(openIDs, "{1}")
		s.want(`SELECT call_id = 1 AND attempt = (SELECT attempts FROM call_queue WHERE id = 1) AND probed_at IS NOT NULL FROM callq.call_pauses`)
		s.start(time.Minute)
		s.shut("", 1, 0)
		s.want(`SELECT spell = $1::interval AND call_id IS NULL FROM callq.call_pauses`, spell)
		s.end(1, callqueue.OutcomeRefused)
	}

	// A probe that was not sent is none.
	s.reopen()
	s.once(r)
	s.start(time.Minute)
	s.end(1, callqueue.OutcomeNotSent)
	s.once(r)
	s.want(openIDs, "{1}")
	s.want(`SELECT attempt = (SELECT attempts FROM call_queue WHERE id = 1) FROM callq.call_pauses`)

	// Any answer that is no refusal opens it.
	s.start(time.Minute)
	s.finish(1)
	s.once(r)
	s.want(openIDs, "{2,3}")
	s.want(`SELECT count(*) = 0 FROM callq.call_pauses`)
	s.verify()
}

// What the API names is kept to, also where requests of one burst are answered after it; each longer answer counts.
func TestProbeAfterNamedTime(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 100, time.Hour))
	s.calls("default", 2)
	s.once(r)
	s.start(time.Minute)
	const until = `SELECT until BETWEEN clock_timestamp() + $1::interval - interval '1 s' AND clock_timestamp() + $1::interval FROM callq.call_pauses`
	s.shut("", 1, time.Minute)
	s.want(until, "1 min")
	s.shut("", 2, 5*time.Minute)
	s.want(until, "5 min")
	s.shut("", 1, time.Minute)
	s.shut("", 1, 0)
	s.want(until, "5 min")
	s.shut("", 1, 1000*time.Hour)
	s.want(until, "1 h")
}

// Others wait for a probe for two seconds: limiters answer at once.
func TestProbeThatTakesLong(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 100, time.Hour))
	s.calls("default", 3)
	s.refused(r, "", 3)
	s.reopen()
	s.once(r)
	s.want(openIDs, "{1}")
	s.exec(`UPDATE callq.call_pauses SET probed_at = probed_at - interval '1 s'`)
	s.once(r)
	s.want(openIDs, "{1}")
	s.exec(`UPDATE callq.call_pauses SET probed_at = probed_at - interval '1 s'`)
	s.once(r)
	s.want(openIDs, "{1,2,3}")
	s.want(`SELECT count(*) = 1 FROM callq.call_pauses`)
}

// A limit per key closes its key alone, and opens it by a call of that key; a call that costs much is one call.
func TestProbeOfAKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	l := sliding("api", 100, time.Hour)
	l.PerKey, l.CountCost = true, true
	r := rules(l)
	s.exec(`INSERT INTO call_queue (key, cost) SELECT key, 20 FROM unnest('{a,b}'::text[]) key, generate_series(1, 2) ORDER BY 1`)
	s.refused(r, "a", 4)
	s.once(r)
	s.want(openIDs, "{3,4}")
	s.reopen()
	s.once(r)
	s.exec(`UPDATE callq.call_pauses SET probed_at = probed_at + interval '1 h'`) // however slow this machine is
	s.once(r)
	s.want(openIDs, "{1,3,4}")
	s.start(time.Minute)
	s.finish(1)
	s.once(r)
	s.want(openIDs, "{2,3,4}")
	s.want(`SELECT count(*) = 0 FROM callq.call_pauses`)
}

// Queues that share a limit send one probe between them.
func TestProbeOfManyQueues(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := policy.Policy{Limits: []policy.Limit{sliding("api", 100, time.Hour)}, Queues: []policy.Queue{queue("a", "api"), queue("b", "api")}}
	s.calls("a", 2)
	s.calls("b", 2)
	s.refused(r, "", 4)
	s.reopen()
	s.once(r)
	s.once(r)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`)
}

// What an API says remains is given out, no more, until it resets; a rate is never raised by it.
func TestLowered(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 10, time.Hour))
	s.calls("default", 8)
	s.publish(r)
	s.exec(`INSERT INTO callq.call_remotes (limit_name, remaining, reset_at, answered_at, lowered) VALUES ('api', 3, clock_timestamp() + interval '1 min', clock_timestamp(), 3)`)
	s.once(r)
	s.want(`SELECT count(*) = 3 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_remotes SET lowered = 1000`)
	s.once(r)
	s.want(`SELECT count(*) = 8 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_remotes SET lowered = 0`)
	s.calls("default", 8)
	s.once(r)
	s.want(`SELECT count(*) = 8 FROM callq.call_open`)
	s.exec(`UPDATE callq.call_remotes SET reset_at = clock_timestamp()`)
	s.once(r)
	s.want(`SELECT count(*) = 10 FROM callq.call_open`)
}

// While an API refuses for ten minutes, or for a day, it is asked ever more seldom, at least each hour; then all goes on at once.
func TestProbesOfALongRefusal(t *testing.T) {
	t.Parallel()
	for refuses, most := range map[time.Duration]int{25 * time.Second: 5, 10 * time.Minute: 10, 24 * time.Hour: 35} {
		parallel(t, refuses.String(), func(_ *testing.T, s *system) {
			r := rules(sliding("api", 100, time.Hour))
			s.calls("default", 20)
			s.refused(r, "", 20)
			probes := 0
			for passed := one[time.Duration](s, `SELECT spell FROM callq.call_pauses`); passed < refuses; passed += one[time.Duration](s, `SELECT spell FROM callq.call_pauses`) {
				s.reopen()
				s.once(r)
				s.want(openIDs, "{1}")
				s.start(time.Minute)
				s.shut("", 1, 0)
				s.end(1, callqueue.OutcomeRefused)
				probes++
			}
			s.want(`SELECT max(spell) <= '1 h' FROM callq.call_pauses`)
			if probes > most {
				s.t.Errorf("%d probes in %s, want %d at most", probes, refuses, most)
			}
			s.reopen()
			s.once(r)
			s.start(time.Minute)
			s.finish(1)
			s.once(r)
			s.want(`SELECT count(*) = 19 FROM callq.call_open`)
		})
	}
}

// Where all keys wait for a probe that is under way, so does a key that waits for one of its own.
func TestProbeOfAllKeysAndOfOne(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	l := sliding("api", 100, time.Hour)
	l.PerKey = true
	r := rules(l)
	s.exec(`INSERT INTO call_queue (key) SELECT key FROM unnest('{"",a,b}'::text[]) key, generate_series(1, 2)`)
	s.once(r)
	s.start(time.Minute)
	s.shut("", 1, 0)
	s.shut("a", 2, 0)
	for call := range int64(6) {
		s.end(call+1, callqueue.OutcomeRefused)
	}
	s.reopen()
	s.once(r)
	s.once(r)
	s.want(`SELECT count(*) = 1 FROM callq.call_open`)
}

// Who pauses a limit that the API closed has it paused, and ends that without a probe.
func TestPauseOfAClosedLimit(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 100, time.Hour))
	s.calls("default", 3)
	s.refused(r, "", 3)
	if _, err := ledger.Pause(t.Context(), s.pool, ledger.Paused{What: "limit", Name: "api", Author: ledger.Author{Reason: "an incident", By: "ann"}}); err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT spell IS NULL AND until = 'infinity' AND by = 'ann' FROM callq.call_pauses`)
	s.exec(`UPDATE callq.call_pauses SET until = clock_timestamp()`)
	s.once(r)
	s.want(openIDs, "{1,2,3}")
}
