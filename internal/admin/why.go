package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/words"
)

// Why is a call with the reasons for its state.
type Why struct {
	ID      int64            `json:"id"`
	Queue   string           `json:"queue"`
	Task    string           `json:"task"`
	Key     string           `json:"key"`
	Status  callqueue.Status `json:"status"`
	Running bool             `json:"running"`
	Reasons []Reason         `json:"reasons"`
	Foresight
	Needs []Budget `json:"-"` // what the call waits for, if they lack units: see Short
}

// Reason is one thing that a call waits for, or what became of it.
type Reason struct {
	Code string `json:"code"`
	Text string `json:"text"`
	// Until is when it ends, approximately; nil: unknown.
	Until *time.Time `json:"until"`
}

// circumstances decide when a call is made.
type circumstances struct {
	call    *callqueue.Record
	now     time.Time // Postgres's clock
	open    *openRow  // its open attempt; nil: it has none
	pauses  []Pause   // of its queue, and of its key in the queue's limits; a limit's own pause is part of its state
	limits  []Limit   // of the queue, as this call's key sees them
	unknown bool      // it waits, and no flow names it
	surroundings
	reasons []Reason
}

// openRow is an open attempt.
type openRow struct {
	Attempt   int        `db:"attempt"`
	HandedAt  time.Time  `db:"handed_at"`
	StartBy   time.Time  `db:"start_by"`
	StartedAt *time.Time `db:"started_at"`
	Deadline  *time.Time `db:"deadline"`
	Pool      string     `db:"pool"`
	Worker    *string    `db:"worker"`
	Takers    int        `db:"takers"` // live workers of its pool
}

// surroundings are the call's queue as it is in force, and who is alive.
type surroundings struct {
	Configured  bool     `db:"configured"` // the queue is in force
	Limits      []string `db:"limits"`
	On          string   `db:"label"`
	Hours       string   `db:"hours"`
	Fit         int      `db:"fit"`     // live workers that handle the call's task and carry its queue's label
	Slots       int64    `db:"slots"`   // theirs
	Running     int64    `db:"running"` // on them
	Dispatchers int      `db:"dispatchers"`
}

// Explain says why a call is in its state: what it waits for, or how it ended.
func Explain(ctx context.Context, pool Pool, call *callqueue.Record) (Why, error) {
	return snapshot(ctx, pool, func(r *reader) Why {
		c := circumstances{call: call, now: r.now}
		c.open = one[openRow](r, "read the open attempt", openSQL, call.ID)
		if around := one[surroundings](r, "read the queue and the workers", surroundingsSQL, call.Queue, call.Task); around != nil {
			c.surroundings = *around
		}
		c.pauses = list[Pause](r, "read pauses", callPausesSQL, call.Key, call.Queue, c.Limits)
		c.limits = r.limits(c.Limits, &call.Key)
		c.unknown = c.waits() && one[struct{ Found bool }](r, "look for the call's flow", inFlowSQL, call.ID) == nil && r.err == nil
		c.explain()
		return Why{call.ID, call.Queue, call.Task, call.Key, call.Status, call.Running, c.reasons, c.foresight(r), r.needs(call)}
	})
}

// ForRedis says whether the call cannot be made without Redis: it waits, or is on its way to a worker.
func (w *Why) ForRedis() bool {
	return !w.Running && (w.Status == callqueue.StatusNew || w.Status == callqueue.StatusError || w.Status == callqueue.StatusDispatched)
}

// AskedRedis adds what Redis says against a hand-over, or why it could not be asked; "": nothing.
func (w *Why) AskedRedis(refused, away string) {
	switch {
	case refused != "":
		text := "Redis takes no hand-over, without which no call is made: " + refused + "; callq doctor says more"
		w.Reasons = append([]Reason{{Code: "no_redis", Text: text}}, w.Reasons...)
		w.StartsAt, w.Because = nil, "unknown: "+text
	case away != "":
		w.Reasons = append(w.Reasons, Reason{Code: "no_redis", Text: "from here Redis cannot be asked whether it takes hand-overs: " + away})
	}
}

// foresight is when the call is made, unless something holds it up and nobody knows for how long.
func (c *circumstances) foresight(r *reader) (f Foresight) {
	if !c.waits() {
		f.Because = c.reasons[0].Text
		return f
	}
	f = r.foresee(c.call)
	endless := []string{"paused", "refused", "too_dear", "limit_shut", "no_limit", "no_queue", "no_worker", "no_dispatcher", "no_flow", "expired"}
	for _, reason := range c.reasons {
		if reason.Until == nil && slices.Contains(endless, reason.Code) {
			f.StartsAt, f.Because = nil, "unknown: "+reason.Text
			break
		}
	}
	return f
}

func (c *circumstances) waits() bool {
	return c.call.Status == callqueue.StatusNew || c.call.Status == callqueue.StatusError
}

// A call that no flow and no row of the inbox names is never claimed.
const inFlowSQL = `
SELECT true AS found
FROM callq.call_effective q
WHERE q.id = $1 AND (
    EXISTS (
        SELECT FROM callq.call_flows l
        JOIN callq.call_segments s ON s.queue = l.queue AND s.key = l.key AND s.priority = l.priority AND s.task = l.task AND s.seq >= l.head
        WHERE l.queue = q.queue AND l.key = q.key AND l.priority % 10 = callq.priority(q.priority) AND l.task = q.task
          AND array_position(s.ids, q.id) > CASE s.seq WHEN l.head THEN l.consumed ELSE 0 END)
    OR EXISTS (SELECT FROM callq.call_inbox n WHERE n.queue = q.queue AND q.id = ANY (n.ids)))`

const openSQL = `
SELECT attempt, handed_at, start_by, started_at, deadline, pool, worker,
    (SELECT count(*) FROM callq.call_workers w WHERE w.pool = o.pool AND callq.alive(w.heartbeat_at)) AS takers
FROM callq.call_open o WHERE call_id = $1`

const surroundingsSQL = `
WITH takers AS (
    SELECT id, slots FROM callq.call_workers LEFT JOIN callq.call_queues ON name = $1
    WHERE callq.alive(heartbeat_at) AND $2::text = ANY(tasks) AND (coalesce(label, '') = '' OR label = ANY(labels))
)
SELECT q.name IS NOT NULL AS configured, coalesce(limits, '{}') AS limits, coalesce(label, '') AS label,
    coalesce(hours, '') AS hours, fit, slots,
    (SELECT count(*) FROM callq.call_open o JOIN takers t ON t.id = o.worker WHERE o.started_at IS NOT NULL) AS running,
    (SELECT count(*) FROM callq.call_dispatchers WHERE callq.alive(heartbeat_at)) AS dispatchers
FROM (SELECT count(*) AS fit, coalesce(sum(slots), 0) AS slots FROM takers) w
LEFT JOIN callq.call_queues q ON q.name = $1`

const callPausesSQL = pausesSQL + `
  AND (what = 'queue' AND name = $2 AND key IN ('', $1) OR what = 'limit' AND name = ANY($3) AND key = $1 AND key <> '')
ORDER BY what DESC, name, key`

// add adds a reason, which ends at until; nil: that is not known.
func (c *circumstances) add(code string, until *time.Time, format string, args ...any) {
	c.reasons = append(c.reasons, Reason{code, fmt.Sprintf(format, args...), until})
}

// explain finds everything that keeps the call from being made, or how it ended. There is always at least one reason.
func (c *circumstances) explain() {
	switch c.call.Status {
	case callqueue.StatusNew, callqueue.StatusError:
		c.explainWaiting()
	case callqueue.StatusDispatched:
		c.explainDispatched()
	default:
		c.explainEnded()
	}
}

func (c *circumstances) explainEnded() {
	if c.open != nil && c.open.StartedAt != nil {
		c.add("running", c.open.Deadline, "its attempt still runs, and counts until it has ended: %s", c.runs())
	}
	at := Instant(c.call.FinishedAt)
	again := fmt.Sprintf("`callq calls retry %d` lets it wait again", c.call.ID)
	switch c.call.Status {
	case callqueue.StatusDone:
		c.add("done", nil, "it is done since %s", at)
	case callqueue.StatusFailed:
		c.add("failed", nil, "it failed at %s: %s; %s", at, Text(c.call.ErrorMessage), again)
	case callqueue.StatusCancelled:
		c.add("cancelled", nil, "it was cancelled at %s; %s", at, again)
	default:
		c.add("unknown", nil, "%q is not a status: nothing will be done with it", c.call.Status)
	}
}

func (c *circumstances) explainDispatched() {
	switch o := c.open; {
	case o == nil:
		c.add("no_attempt", nil, "it is dispatched, and no attempt of it is open: it has just ended, or run `callq verify`")
	case o.StartedAt != nil && o.Deadline != nil && o.Deadline.Before(c.now):
		c.add("overdue", nil, "%s; it is past its deadline: a dispatcher will take it for lost", c.runs())
	case o.StartedAt != nil:
		c.add("running", o.Deadline, "%s", c.runs())
	case o.Takers == 0:
		c.add("no_worker", nil, "it was handed to the workers %s, and none of them is alive: run `callq serve` or `callq work`", o.Pool)
	case o.Worker != nil:
		c.add("in_run", &o.StartBy, "it is in a run of %s, and waits for its turn; else it goes back", *o.Worker)
	default:
		what := "one of them to start it"
		if c.Slots > 0 && c.Running >= c.Slots {
			what = fmt.Sprintf("a slot of theirs, of which %d of %d %s taken", c.Running, c.Slots, words.Verb(c.Running, "is", "are"))
		}
		c.add("handed_over", &o.StartBy, "it was handed to the workers %s %s, and waits for %s; else it goes back",
			o.Pool, Ago(c.now, o.HandedAt), what)
	}
}

func (c *circumstances) runs() string {
	return fmt.Sprintf("attempt %d runs on %s, started %s", c.open.Attempt, Text(c.open.Worker), Ago(c.now, *c.open.StartedAt))
}

// explainWaiting adds first the call's own reasons, then its queue's, then what all calls share.
func (c *circumstances) explainWaiting() {
	c.explainCall()
	if h := hoursAt(c.Hours, c.now); h.OutsideHours {
		c.add("outside_hours", h.HoursUntil, "queue %s is %s (hours: %s)", c.call.Queue, h.state, c.Hours)
	}
	for _, p := range c.pauses {
		whose, until := p.What+" "+p.Name, "it is resumed"
		if p.Key != "" {
			whose += ", key " + p.Key + ","
		}
		if p.Until != nil {
			until = Instant(p.Until)
		}
		if p.Refused {
			c.add("refused", p.Until, "%s is closed until %s: %s", whose, until, p.Reason)
			continue
		}
		c.add("paused", p.Until, "%s is paused until %s: %s (by %s)", whose, until, p.Reason, p.By)
	}
	for _, l := range c.limits {
		c.explainLimit(l)
	}
	for _, name := range without(c.Limits, c.limits) {
		c.add("no_limit", nil, "queue %s names limit %s, which is gone: run `callq config apply`", c.call.Queue, name)
	}
	switch {
	case !c.Configured:
		c.add("no_queue", nil, "queue %s is not in the configuration in force: add it, and run `callq config apply`", c.call.Queue)
	case c.Fit == 0:
		c.add("no_worker", nil, "%s: run `callq serve`, `callq work` or your own worker", nobody(c.call.Task, c.On))
	case c.Running >= c.Slots:
		c.add("workers_busy", nil, "all slots of its workers are taken: %d of %d %s", c.Running, c.Slots, words.Verb(c.Running, "runs", "run"))
	}
	if c.unknown {
		c.add("no_flow", nil, "no flow names it: it was written while callq's triggers were off. Run `callq maintain sweep`")
	}
	if c.Dispatchers == 0 {
		c.add("no_dispatcher", nil, "no dispatcher is alive: nothing is claimed until one runs (callq serve, callq dispatch)")
	}
	if len(c.reasons) == 0 {
		c.add("next", nil, "nothing holds it up but the calls before it in queue %s: a dispatcher takes it at one of its next looks",
			c.call.Queue)
	}
}

// explainCall adds what the call itself waits for.
func (c *circumstances) explainCall() {
	call := c.call
	if call.ExpiresAt != nil && !call.ExpiresAt.After(c.now) {
		c.add("expired", nil, "it expired %s, and a dispatcher will fail it", Ago(c.now, *call.ExpiresAt))
		return
	}
	if !call.RunAt.After(c.now) {
		return
	}
	code, text := "not_due", "it is not due until "+Text(call.RunAt)
	if call.Status == callqueue.StatusError {
		code, text = "retry", fmt.Sprintf("it failed and is tried again at %s (failures: %d)", Text(call.RunAt), call.FailedCount)
	}
	if call.ErrorMessage != nil {
		text += "; the last time: " + *call.ErrorMessage
	}
	c.add(code, &call.RunAt, "%s", text)
}

func (c *circumstances) explainLimit(l Limit) {
	units, whose := int64(1), l.Name
	if l.CountCost {
		units = c.call.Cost
	}
	if l.PerKey {
		whose += ", key " + Dash(c.call.Key) + ","
	}
	switch {
	case strings.HasPrefix(l.State, "paused"):
		c.add("paused", l.ShutUntil, "limit %s is %s", l.Name, l.stateUntil(l.State))
	case strings.HasPrefix(l.State, "refused"), strings.HasPrefix(l.State, "probed"):
		c.add("refused", l.ShutUntil, "limit %s is %s", l.Name, l.stateUntil(l.State))
	case l.State != "open":
		c.add("limit_shut", l.ShutUntil, "limit %s is %s", l.Name, l.stateUntil(l.State))
	case l.CountCost && l.Config != nil && units > l.InAll():
		c.add("too_dear", nil, "it takes %s, and limit %s has %d in all since `callq limits set`: reset that (the configuration allows %s), or cancel it",
			words.Count(units, "unit"), whose, l.InAll(), *l.Config)
	case l.Room >= units:
	case l.Window == 0:
		c.add("limit_full", nil, "limit %s is full: %d of %d %s, and it takes %d; the next unit comes free when one ends%s",
			whose, l.Occupied, l.InAll(), words.Verb(l.Occupied, "runs", "run"), units, l.shareText(c.call))
	default:
		text := fmt.Sprintf("limit %s is full: %d of %d %s (%s) %s occupied, and it takes %d", whose, l.Occupied, l.InAll(),
			words.Verb(l.InAll(), "unit", "units"), l.Rate, words.Verb(l.Occupied, "is", "are"), units)
		if l.nextIfOpen != nil {
			text += "; " + nextUnit(*l.nextIfOpen, c.now)
		}
		if l.Missing > 0 {
			text += "; besides there are " + l.missingText()
		}
		c.add("limit_full", l.OpensAt, "%s", text+l.shareText(c.call))
	}
}
