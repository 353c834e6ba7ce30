package sim

import (
	"errors"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// refuse is how an attempt ends that the API refused: tasks/refused.go.
func (a *attempt) refuse(c *ledger.Closing) {
	w := a.k.w
	queue, limits := a.refusable()
	retries := queue.OnRefused == "retry"
	closes, probe := false, false
	for _, l := range limits {
		if l.RetryAfter > 0 && (!retries || a.after > 0) && a.shut(l) {
			closes, probe = true, probe || l.Probe
		}
	}
	switch {
	case retries:
		a.fail(c)
		return
	case queue.Refusals+1 >= queue.MaxRefusals:
		c.Outcome, c.Status, c.Failed = callqueue.OutcomePermanent, callqueue.StatusFailed, true
		return
	case closes && !probe: // it keeps its place
	case closes:
		c.Delay = new(max(a.after, 100*time.Millisecond))
	case a.after > 0:
		c.Delay = new(a.after)
	default:
		c.Delay = new(a.policy().Backoff(queue.Refusals+1, w.rng.Int64N))
	}
	c.Outcome, c.Status = callqueue.OutcomeRefused, callqueue.StatusNew
}

// fail is how an attempt ends whose error is retried, after the delay that the API named, if any.
func (a *attempt) fail(c *ledger.Closing) {
	status, delay := a.policy().Next(a.FailedCount+1, a.k.w.rng.Int64N)
	if a.after > 0 {
		delay, a.of.later = a.after, true
	}
	c.Outcome, c.Status, c.Delay, c.Failed = callqueue.OutcomeError, status, &delay, true
}

type refusing struct {
	OnRefused   string
	MaxRefusals int
	Refusals    int
}

type refusable struct {
	Name, Key          string
	Window, RetryAfter time.Duration
	Probe              bool
}

// refusable reads what a refusal of the attempt closes. Where Postgres does not answer, that is nothing.
func (a *attempt) refusable() (queue refusing, limits []refusable) {
	w := a.k.w
	if w.fault(w.set.loss) {
		w.note(a.CallID, "", "attempt %d closes nothing: no answer", a.Attempt)
		a.of.unread++
		return refusing{MaxRefusals: 1000}, nil
	}
	w.must(w.lane.workers.QueryRow(w.ctx, refusingSQL, a.CallID, a.Queue).Scan(&queue.OnRefused, &queue.MaxRefusals, &queue.Refusals))
	rows, err := w.lane.workers.Query(w.ctx, refusableSQL, a.Limits, a.Keys, a.CallID, a.Attempt)
	w.must(err)
	limits, err = pgx.CollectRows(rows, pgx.RowToStructByPos[refusable])
	w.must(err)
	return queue, limits
}

const refusingSQL = `
SELECT coalesce(r.on_refused, 'close'), coalesce(r.max_refusals, 1000),
    (SELECT count(*) FROM call_attempts WHERE call_id = $1 AND outcome = 'refused')
FROM (SELECT $2::text AS name) q
LEFT JOIN callq.call_queues r ON r.name = q.name`

// Limits of calls at once are closed only where there is no other.
const refusableSQL = `
SELECT name, key, window_size, retry_after, probe
FROM (
    SELECT a.n, l.name, a.key, l.window_size, l.retry_after, (p.call_id = $3 AND p.attempt = $4) IS TRUE AS probe,
        bool_or(l.window_size > '0') OVER () AS windows
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS a (name, key, n)
    JOIN callq.call_limits l ON l.name = a.name
    LEFT JOIN callq.call_pauses p ON p.what = 'limit' AND p.name = l.name AND p.key = a.key AND p.spell IS NOT NULL
) l
WHERE window_size > '0' OR NOT windows
ORDER BY n`

// shut closes a limit, and says whether the worker knows that it did.
func (a *attempt) shut(l refusable) bool {
	w := a.k.w
	reply := answered
	switch {
	case w.fault(w.set.loss / 2):
		return false
	case w.fault(w.set.loss / 2):
		reply = unheard
	}
	first := time.Second
	if l.Window > 0 {
		first = min(l.Window, first)
	}
	err := ledger.ShutLimit(w.ctx, w.lane.workers, ledger.Shut{
		Limit: l.Name, Key: l.Key, CallID: a.CallID, Attempt: a.Attempt, After: a.after, First: first, Most: l.RetryAfter,
		Evenly: true, By: a.k.id, Reason: "the API wants no more",
	})
	if !errors.Is(err, ledger.ErrUnknown) { // no queue is under it any more
		w.must(err)
		w.closed(pauseOf{"limit", l.Name, l.Key}, min(a.after, l.RetryAfter))
	}
	return reply == answered
}

// door is a limit, or a key of one, that a refusal closed: until then, and then until a probe had an answer that is none.
type door struct {
	until    time.Time // on Postgres's clock
	probe    callAttempt
	probedAt time.Time
}

// closed notes that a refusal has closed a limit: for as long as the API named, if it did. Else the answer may be one to a request
// that went out before the limit closed.
func (w *world) closed(of pauseOf, named time.Duration) {
	w.learnDoors(of)
	d := w.doors[of]
	if d == nil && w.pauses[of].After(w.postgres()) { // an operator has, for longer
		return
	}
	if d == nil || named > 0 && d.until.Before(w.shown().Add(named.Truncate(time.Microsecond))) {
		w.fail("a refusal closes its limits", 0, of.name, "key %q is not closed for %s: %+v", of.key, named, d)
	}
	w.note(0, of.name, "a refusal closes key %q until %s", of.key, d.until.Format("15:04:05.000000"))
}

// shown is what Postgres's clock shows, as exactly as it does.
func (w *world) shown() time.Time { return w.postgres().Truncate(time.Microsecond) }

// learnDoors reads what somebody other than a dispatcher has changed: of one of them, or of all.
func (w *world) learnDoors(of ...pauseOf) {
	for _, o := range of {
		delete(w.doors, o)
	}
	if len(of) == 0 {
		clear(w.doors)
	}
	rows, err := w.lane.workers.Query(w.ctx, doorsSQL)
	w.must(err)
	o, d := pauseOf{what: "limit"}, door{}
	_, err = pgx.ForEachRow(rows, []any{&o.name, &o.key, &d.until, &d.probe.call, &d.probe.attempt, &d.probedAt}, func() error {
		if len(of) == 0 || o == of[0] {
			w.doors[o] = new(d)
		}
		return nil
	})
	w.must(err)
}

const doorsSQL = `
SELECT name, key, until, coalesce(call_id, 0), coalesce(attempt, 0), coalesce(probed_at, '2000-01-01')
FROM callq.call_pauses WHERE what = 'limit' AND spell IS NOT NULL`
