package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/callq/callq/callqueue"
)

// Reason is one thing that a call waits for, or what became of it.
type Reason struct {
	Code string `json:"code"`
	Text string `json:"text"`
	// Until is when it ends, approximately; nil: unknown.
	Until *time.Time `json:"until"`
}

// circumstances decide when a call is made.
type circumstances struct {
	now   time.Time // Postgres's clock
	call  *callqueue.Record
	open  *openRow // its open attempt; nil: it has none
	queue *ruleRow // nil: it is not in force

	pauses      []callPause
	limits      []Limit // of the queue, as this call's key sees them
	workers     workforce
	dispatchers int // that are alive
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
	Slots     int64      `db:"slots"`  // theirs; 0: their Asynq queue is paused
}

// ruleRow is the call's queue as it is in force.
type ruleRow struct {
	Limits []string `db:"limits"`
	On     string   `db:"label"`
	Hours  []string `db:"hours"`
}

// callPause is a pause that holds the call up.
type callPause struct {
	What   string     `db:"what"`
	Name   string     `db:"name"`
	Key    string     `db:"key"`
	Until  *time.Time `db:"until"`
	Reason string     `db:"reason"`
	By     string     `db:"by"`
}

// workforce is the live workers.
type workforce struct {
	Handle  int   `db:"handle"`  // the call's task
	Fit     int   `db:"fit"`     // and carry its queue's label
	Slots   int64 `db:"slots"`   // of those that fit
	Running int64 `db:"running"` // on them
}

// reasons returns everything that keeps a call from being made, or how it ended. There is always at least one.
func (c circumstances) reasons() []Reason {
	switch c.call.Status {
	case callqueue.StatusNew, callqueue.StatusError:
		return c.waits()
	case callqueue.StatusDispatched:
		return c.underWay()
	}
	return c.ended()
}

func (c circumstances) ended() []Reason {
	var list []Reason
	if c.open != nil && c.open.StartedAt != nil {
		text := "its attempt still runs, and counts until it has ended: " + c.runs()
		list = append(list, Reason{"running", text, c.open.Deadline})
	}
	at := Instant(c.call.FinishedAt)
	again := fmt.Sprintf("`callq calls retry %d` lets it wait again", c.call.ID)
	switch c.call.Status {
	case callqueue.StatusDone:
		list = append(list, Reason{"done", "it is done since " + at, nil})
	case callqueue.StatusFailed:
		list = append(list, Reason{"failed", fmt.Sprintf("it failed at %s: %s; %s", at, Text(c.call.ErrorMessage), again), nil})
	case callqueue.StatusCancelled:
		list = append(list, Reason{"cancelled", fmt.Sprintf("it was cancelled at %s; %s", at, again), nil})
	default:
		text := fmt.Sprintf("%q is not a status: nothing will be done with it", c.call.Status)
		list = append(list, Reason{"unknown", text, nil})
	}
	return list
}

func (c circumstances) underWay() []Reason {
	switch o := c.open; {
	case o == nil:
		text := "it is dispatched, and no attempt of it is open: it has just ended, or run `callq verify`"
		return []Reason{{"no_attempt", text, nil}}
	case o.StartedAt != nil && o.Deadline != nil && o.Deadline.Before(c.now):
		return []Reason{{"overdue", c.runs() + "; it is past its deadline: a dispatcher will take it for lost", nil}}
	case o.StartedAt != nil:
		return []Reason{{"running", c.runs(), o.Deadline}}
	case o.Takers == 0:
		text := "it was handed to the workers %s, and none of them is alive: run `callq serve` or `callq work`"
		return []Reason{{"no_worker", fmt.Sprintf(text, o.Pool), nil}}
	case o.Slots == 0:
		text := "it was handed to the workers %s, and the Asynq queue of its workers is paused: resume it in Asynqmon"
		return []Reason{{"workers_paused", fmt.Sprintf(text, o.Pool), nil}}
	default:
		text := "it was handed to the workers %s %s, and waits for one of them to start it; else it goes back"
		return []Reason{{"handed_over", fmt.Sprintf(text, o.Pool, Ago(c.now, o.HandedAt)), &o.StartBy}}
	}
}

func (c circumstances) runs() string {
	return fmt.Sprintf("attempt %d runs on %s, started %s", c.open.Attempt, Text(c.open.Worker), Ago(c.now, *c.open.StartedAt))
}

// waits returns what a waiting call waits for: first its own reasons, then its queue's, then what all calls share.
func (c circumstances) waits() []Reason {
	var list []Reason
	add := func(code string, until *time.Time, format string, args ...any) {
		list = append(list, Reason{code, fmt.Sprintf(format, args...), until})
	}
	call := c.call
	switch {
	case call.ExpiresAt != nil && !call.ExpiresAt.After(c.now):
		add("expired", nil, "it expired %s, and a dispatcher will fail it", Ago(c.now, *call.ExpiresAt))
	case call.RunAt.After(c.now) && call.Status == callqueue.StatusError:
		times := "once"
		if call.FailedCount != 1 {
			times = fmt.Sprintf("%d times", call.FailedCount)
		}
		add("retry", &call.RunAt, "it failed %s and is tried again at %s; the last time: %s",
			times, Instant(&call.RunAt), Text(call.ErrorMessage))
	case call.RunAt.After(c.now) && handedBack(call):
		add("handed_back", &call.RunAt, "it came back unsent and goes again at %s: %s", Instant(&call.RunAt), Text(call.ErrorMessage))
	case handedBack(call):
		add("handed_back", nil, "it came back: %s", Text(call.ErrorMessage))
	case call.RunAt.After(c.now):
		add("not_due", &call.RunAt, "it is not due until %s", Instant(&call.RunAt))
	}
	if c.queue == nil {
		add("no_queue", nil, "queue %s is not in the configuration in force: add it, and run `callq config apply`", call.Queue)
	} else if o := openingAt(c.queue.Hours, c.now); o.holdsUp() {
		add("outside_hours", o.at(), "queue %s is %s (hours: %s)", call.Queue, o, o.rule())
	}
	for _, p := range c.pauses {
		add("paused", p.Until, "%s", p.text())
	}
	if c.queue != nil {
		c.addLimits(add)
		c.addWorkers(add)
	}
	if c.dispatchers == 0 {
		add("no_dispatcher", nil, "no dispatcher is alive: nothing is claimed until one runs (callq serve, callq dispatch)")
	}
	if len(list) == 0 {
		add("next", nil, "nothing holds it up but the calls before it in queue %s: a dispatcher takes it at one of its next looks",
			call.Queue)
	}
	return list
}

// handedBack reports whether a worker could not make the call, and another may (tasks/http.go).
func handedBack(call *callqueue.Record) bool {
	return call.Status == callqueue.StatusNew && call.ErrorMessage != nil && strings.HasPrefix(*call.ErrorMessage, "not sent: handed back ")
}

func (p callPause) text() string {
	what := p.What + " " + p.Name
	if p.Key != "" {
		what += ", key " + p.Key + ","
	}
	until := "until it is resumed"
	if p.Until != nil {
		until = "until " + Instant(p.Until)
	}
	return fmt.Sprintf("%s is paused %s: %s (by %s)", what, until, p.Reason, p.By)
}

func (c circumstances) addLimits(add func(string, *time.Time, string, ...any)) {
	const full = "limit %s is full: %d of %d units (%s) are occupied, and it takes %d"
	for _, l := range c.limits {
		units := int64(1)
		if l.CountCost {
			units = c.call.Cost
		}
		whose := l.Name
		if l.PerKey {
			whose += ", key " + Dash(c.call.Key) + ","
		}
		switch {
		case strings.HasPrefix(l.State, "paused"):
			add("paused", l.ShutUntil, "limit %s is %s", l.Name, l.stateUntil(l.State))
		case l.State != "open":
			add("limit_shut", l.ShutUntil, "limit %s is %s", l.Name, l.stateUntil(l.State))
		case l.Room >= units:
		case l.Window == 0:
			add("limit_full", nil, "limit %s is full: %d of %d run, and it takes %d; the next unit comes free when one ends",
				whose, l.Occupied, l.InAll(), units)
		case l.OpensAt != nil:
			add("limit_full", l.OpensAt, full+"; the next comes free at about %s%s",
				whose, l.Occupied, l.InAll(), l.Rate, units, Instant(l.OpensAt), l.alsoMissing())
		default:
			add("limit_full", nil, full+"%s", whose, l.Occupied, l.InAll(), l.Rate, units, l.alsoMissing())
		}
	}
}

func (c circumstances) addWorkers(add func(string, *time.Time, string, ...any)) {
	w := c.workers
	switch {
	case w.Handle == 0:
		add("no_worker", nil, "no live worker handles task %s: run `callq serve`, `callq work` or your own worker",
			c.call.Task)
	case w.Fit == 0:
		add("no_worker", nil, "no live worker that handles task %s carries the label %s, which queue %s asks for",
			c.call.Task, c.queue.On, c.call.Queue)
	case w.Slots == 0:
		add("workers_paused", nil, "the Asynq queue of its workers is paused: resume it in Asynqmon")
	case w.Running >= w.Slots:
		add("workers_busy", nil, "all slots of its workers are taken: %d of %d run", w.Running, w.Slots)
	}
}
