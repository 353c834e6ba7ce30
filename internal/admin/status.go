package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/words"
)

// Status is what one screen shows, read in one snapshot.
type Status struct {
	At      time.Time `json:"at"` // Postgres's clock
	Verdict Verdict   `json:"verdict"`
	// Standby is when what this standby has replayed was committed; nil: it is none.
	Standby *time.Time `json:"standby_replayed_until,omitempty"`
	Queues  []Queue    `json:"queues"`
	Limits  []Limit    `json:"limits"`
	Budgets []Budget   `json:"budgets"`
	Workers []Worker   `json:"workers"`
	Routes  []Route    `json:"routes"`
	// HTTPTask names the settings of http_task in which live workers differ, and what each of them has.
	HTTPTask  []string  `json:"http_task"`
	Unhandled []Waiting `json:"unhandled"` // calls that no live worker handles
	// Dispatchers are those alive, as host/pid; `dispatch --once` is one while it runs.
	Dispatchers []string        `json:"dispatchers"`
	Others      []string        `json:"other_configuration"` // those of them whose file is not in force
	Policy      *policy.Applied `json:"policy"`              // in force; nil: none was ever applied
	Oldest      *Oldest         `json:"oldest"`              // due call; nil: none, or none among the first
	Verified    *Verified       `json:"verified"`            // the last scheduled verify; nil: there was none

	trends []trend
}

// StandbyText heads what is read of a standby; "": it is none.
func (s *Status) StandbyText() string {
	if s.Standby == nil {
		return ""
	}
	return fmt.Sprintf("standby, replayed until %s: it can be looked at, and nothing is claimed here", Instant(s.Standby))
}

// ReadStatus reads the status in one snapshot.
func ReadStatus(ctx context.Context, pool Pool) (*Status, error) {
	return snapshot(ctx, pool, func(r *reader) *Status {
		queues, waiting := r.queues()
		s := &Status{
			At: r.now, Standby: r.standby, Queues: queues, Unhandled: slices.DeleteFunc(waiting, func(w Waiting) bool { return w.Handled }),
			Limits: r.limits(nil, nil), Budgets: r.budgets(), Routes: r.routes(),
			Workers: list[Worker](r, "read workers", workersSQL), HTTPTask: []string{},
			Oldest:   one[Oldest](r, "read the oldest call", oldestSQL),
			Verified: one[Verified](r, "read the last verify", verifiedSQL),
		}
		holds(s.Queues, s.Limits)
		s.trends = list[trend](r, "read what was due", trendsSQL, trendOver)
		for _, d := range list[struct{ Text string }](r, "read the workers' http settings", httpSettingsSQL) {
			s.HTTPTask = append(s.HTTPTask, d.Text)
		}
		if r.err == nil {
			s.Dispatchers, s.Others, r.err = policy.Dispatchers(r.ctx, r.tx)
		}
		if r.err == nil {
			s.Policy, r.err = policy.Effective(r.ctx, r.tx)
		}
		s.Verdict = s.judge()
		return s
	})
}

// Worker is a worker that is alive, or was until recently.
type Worker struct {
	ID        string    `json:"id" db:"id"`
	Pool      string    `json:"pool" db:"pool"`
	Tasks     []string  `json:"tasks" db:"tasks"`
	Labels    []string  `json:"labels" db:"labels"`
	Slots     int       `json:"slots" db:"slots"`
	Running   int64     `json:"running" db:"running"`
	Live      bool      `json:"live" db:"live"`
	StartedAt time.Time `json:"started_at" db:"started_at"`
	BeatAt    time.Time `json:"heartbeat_at" db:"heartbeat_at"`
}

const workersSQL = `
SELECT w.id, w.pool, w.tasks, w.labels, w.slots, w.started_at, w.heartbeat_at,
    callq.alive(w.heartbeat_at) AS live, count(o.call_id) AS running
FROM callq.call_workers w
LEFT JOIN callq.call_open o ON o.worker = w.id AND o.started_at IS NOT NULL
GROUP BY w.id
ORDER BY live DESC, w.id`

// Oldest is the call that has been due the longest.
type Oldest struct {
	ID    int64     `json:"id" db:"id"`
	Queue string    `json:"queue" db:"queue"`
	DueAt time.Time `json:"due_at" db:"due_at"`
}

// The oldest call is among the first thousand of each of the 30 oldest segments and inbox rows. One inbox row may hold
// many calls that fell due at once. There is no row if none of those is due any more. There may be a million segments, so
// only those are sorted that are as old as the 30 oldest of some.
const oldestSQL = `
SELECT q.id, first.queue, greatest(q.run_at, timestamptz '0001-01-01 00:00:00Z') AS due_at
FROM (
    (SELECT queue, at, ids FROM callq.call_segments
     WHERE at <= coalesce((SELECT at FROM (SELECT at FROM callq.call_segments LIMIT 10000) s ORDER BY at LIMIT 1 OFFSET 29), 'infinity')
     ORDER BY at LIMIT 30)
    UNION ALL
    (SELECT queue, at, ids FROM callq.call_inbox WHERE calls > 0 AND at <= (SELECT clock_timestamp()) ORDER BY at LIMIT 30)
) first
CROSS JOIN LATERAL unnest(first.ids[:1000]) AS i (id)
JOIN callq.call_effective q ON q.id = i.id
WHERE q.status IN ('new', 'error') AND q.run_at <= clock_timestamp()
ORDER BY due_at, q.id
LIMIT 1`

// Budget is a budget in force.
type Budget struct {
	Name     string        `json:"name" db:"name"`
	Rate     string        `json:"rate" db:"-"`
	Units    int64         `json:"units" db:"rate"`
	Window   time.Duration `json:"window_ns" db:"window_size"`
	Burst    int64         `json:"burst" db:"burst"`
	Shape    budget.Shape  `json:"shape" db:"shape"`
	OnOutage string        `json:"on_outage" db:"on_outage"`
	Free     *int64        `json:"free" db:"-"`       // now, as Redis has it; nil: it does not answer
	Waiting  time.Duration `json:"waiting_ns" db:"-"` // until the last of the draws that wait has its units
	// Promised is what attempts of queues that need it have yet to draw, Multiplier what handlers have throttled the rate to.
	Promised   int64     `json:"promised" db:"-"`
	Multiplier float64   `json:"multiplier" db:"-"`
	ChangedAt  time.Time `json:"changed_at" db:"applied_at"`
	ChangedBy  string    `json:"changed_by" db:"applied_by"`

	// NeededBy has what each call of a queue needs of it.
	NeededBy map[string]int64 `json:"needed_by" db:"needed_by"`
	// Asker is a call's queue and key for which Redis is asked, and Until how long before it has units for one more of its calls.
	Asker struct{ Queue, Key string } `json:"-" db:"-"`
	Until time.Duration               `json:"-" db:"-"`

	Unknown string `json:"-" db:"-"` // why Free is
	Fix     string `json:"-" db:"-"` // what somebody has to do about that; "": it may pass by itself
}

// Rule is what Redis is asked by.
func (b Budget) Rule() budget.Rule {
	return budget.Rule{Rate: limit.Rate{Units: b.Units, Window: b.Window}, Burst: b.Burst, Shape: b.Shape}
}

// Budgets are those in force.
func Budgets(ctx context.Context, pool Pool) ([]Budget, error) {
	return snapshot(ctx, pool, (*reader).budgets)
}

func (r *reader) budgets() []Budget {
	budgets := list[Budget](r, "read budgets", budgetsSQL)
	for i := range budgets {
		rule := budgets[i].Rule()
		budgets[i].Rate = rule.RateText()
	}
	return budgets
}

const budgetsSQL = `SELECT name, rate, window_size, burst, shape, on_outage, applied_at, applied_by,
    (SELECT jsonb_object_agg(q.name, q.needs->b.name) FROM callq.call_queues q WHERE q.needs ? b.name) AS needed_by
FROM callq.call_budgets b ORDER BY name`

// Of secrets workers tell names and hosts, never a value.
const httpSettingsSQL = `
SELECT format('http_task.%s (%s)', key, string_agg(who || ': ' || value, '; ' ORDER BY since, value)) AS text
FROM (
    SELECT s.key, s.value::text AS value, string_agg(w.id, ', ' ORDER BY w.started_at, w.id) AS who, min(w.started_at) AS since
    FROM callq.call_workers w CROSS JOIN jsonb_each(w.http) s
    WHERE callq.alive(w.heartbeat_at)
    GROUP BY 1, 2
) s
GROUP BY key HAVING count(*) > 1
ORDER BY key`

// Level describes how bad a finding is.
type Level string

// The levels. Only a problem needs action.
const (
	OK      Level = "ok"
	Note    Level = "note"
	Problem Level = "problem"
)

// Finding is something that keeps calls from being made, that an operator should know, or that is well.
type Finding struct {
	Check string `json:"check" db:"-"` // of doctor's
	Level Level  `json:"level" db:"level"`
	What  string `json:"what" db:"what"`
	Fix   string `json:"fix" db:"fix"` // what to do or run; empty if all is well

	Queue, Limit, Task string `json:"-" db:"-"` // what it is about; all empty: something else
}

// findings has at most ten of each check and level: notes keep no problem from being told.
type findings []Finding

// add adds a finding, whose words are what.
func (f *findings) add(about Finding, what string, args ...any) {
	alike := 0
	for _, other := range *f {
		if other.Check == about.Check && other.Level == about.Level {
			alike++
		}
	}
	if alike < 10 {
		about.What = fmt.Sprintf(what, args...)
		*f = append(*f, about)
	}
}

func (f *findings) problem(check, fix, what string, args ...any) {
	f.add(Finding{Check: check, Level: Problem, Fix: fix}, what, args...)
}

// Problems judges the status. The worst comes first.
func (s *Status) Problems() []Finding {
	var list findings
	if len(s.Dispatchers) == 0 {
		list.problem("dispatchers", "callq serve, or callq dispatch (or callq dispatch --once each minute, from cron)",
			"no dispatcher is alive: nothing is claimed")
	}
	if !slices.ContainsFunc(s.Workers, func(w Worker) bool { return w.Live }) {
		list.problem("workers", "callq serve, or callq work", "no worker is alive: nothing is sent")
	}
	if len(s.Others) > 0 {
		list.problem("rules", "give them the newer file, or put theirs in force: callq config apply, or SIGHUP",
			"not all live dispatchers agree: %s: another configuration than the one in force, which %s",
			strings.Join(s.Others, ", "), s.Policy)
	}
	for _, difference := range s.HTTPTask {
		list.problem("http settings",
			"give them the same http_task, or Config.HTTP, and send each SIGHUP, or restart those with the old one",
			"live workers differ on %s: a call goes where any of them may send it, and back unsent from one that may not", difference)
	}
	if v := s.Verified; v != nil && v.Problems > 0 && s.At.Sub(v.At) < verifiedFor {
		list.problem("verify", "callq verify", "the scheduled verify of %s found %s: a limit may have been exceeded, or the ledger changed by hand",
			Instant(&v.At), words.Count(v.Problems, "problem"))
	}
	s.addWaiting(&list)
	for _, q := range s.Queues {
		for _, name := range without(q.Limits, s.Limits) {
			list.add(Finding{Check: "limits", Level: Problem, Queue: q.Name, Fix: "callq config apply"},
				"queue %s names limit %s, which is gone: none of its calls is claimed", Short(q.Name), Short(name))
		}
	}
	for _, l := range s.Limits {
		l.addProblems(&list)
	}
	return list
}

// verifiedFor is for how long what a scheduled verify found is told. It is longer than most schedules; one that was turned off has no
// later run, which could find nothing.
const verifiedFor = 8 * 24 * time.Hour

// addWaiting adds what waits for no worker, most calls first: tasks without a worker, and queues that are not in force.
// Calls that are not yet due count too, so that you notice before they are.
func (s *Status) addWaiting(list *findings) {
	queues := slices.Clone(s.Queues)
	slices.SortStableFunc(queues, func(a, b Queue) int { return cmp.Compare(b.Waiting, a.Waiting) })
	for _, t := range s.Unhandled {
		fix := fmt.Sprintf(`start a worker whose program has w.Handle("%s", …), or cancel them: callq calls cancel`, t.Task)
		switch {
		case t.Label != "":
			fix = "start one with worker.labels: [" + t.Label + "]"
		case t.Task == "http":
			fix = "callq work"
		}
		list.add(Finding{Check: "tasks", Level: Problem, Task: t.Task, Fix: fix},
			"%s: %s waiting in queue %s", nobody(t.Task, t.Label), words.Count(t.Waiting, "call"), Printable(Short(t.Queue)))
	}
	const add = "add it under queues in the configuration, and send the processes SIGHUP"
	for _, q := range queues {
		if !q.Configured && q.Waiting > 0 {
			list.add(Finding{Check: "queues", Level: Problem, Queue: q.Name, Fix: add},
				"%s waiting in queue %s, which is not in force", words.Count(q.Waiting, "call"), Short(q.Name))
		}
	}
}

// addProblems adds that the limit lets nothing through, or not all, because of what it cannot count. One that no queue
// uses is left out.
func (l Limit) addProblems(list *findings) {
	if l.Idle() {
		return
	}
	const lost = "Postgres failed over or was restored"
	about, until := Finding{Check: "limits", Level: Problem, Limit: l.Name}, Instant(l.MissingUntil)
	if strings.HasPrefix(l.State, "shut") && l.State != shutMissing {
		about.Fix = "start a dispatcher, which counts what was used; that waits until attempts under a former rule have ended"
		list.add(about, "limit %s is %s; what it has used is not yet counted", l.Name, l.State)
	}
	about.Fix = "nothing: it opens by itself; sooner, where you know what was sent: callq limits open " + l.Name + " --reason …"
	switch {
	case l.MissingUntil == nil:
	case l.KnownAt == nil:
		list.add(about, "limit %s is shut until %s: of what was sent before, some may be missing (%s, or retention had "+
			"removed it before the limit was as it is)", l.Name, until, lost)
	default:
		if l.MissingUntil.Sub(l.now) < time.Hour {
			about.Level = Note
		}
		list.add(about, "what was left of limit %s at %s counts as used until %s: %s, and of what was given out last some "+
			"may be missing", l.Name, Instant(l.KnownAt), until, lost)
	}
}
