package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is something that keeps calls from being made, or that an operator should know.
type Problem struct {
	Check              string // of doctor's
	Note               bool   // it needs no action
	Queue, Limit, Task string // what it is about; all empty: something else
	What, Fix          string
}

// problems has at most ten of each check, and as many notes: those keep no problem from being told.
type problems []Problem

func (p *problems) add(about Problem, fix, what string, args ...any) {
	alike := 0
	for _, other := range *p {
		if other.Check == about.Check && other.Note == about.Note {
			alike++
		}
	}
	if alike < 10 {
		about.Fix, about.What = fix, fmt.Sprintf(what, args...)
		*p = append(*p, about)
	}
}

// Problems judges the status. The worst comes first.
func (s *Status) Problems() []Problem {
	var list problems
	if len(s.Dispatchers) == 0 {
		list.add(Problem{Check: "dispatchers"}, "callq serve, or callq dispatch (or callq dispatch --once each minute, from cron)",
			"no dispatcher is alive: nothing is claimed")
	}
	if !slices.ContainsFunc(s.Workers, func(w Worker) bool { return w.Live }) {
		list.add(Problem{Check: "workers"}, "callq serve, or callq work", "no worker is alive: nothing is sent")
	}
	if len(s.Others) > 0 {
		list.add(Problem{Check: "rules"}, "give them the newer file, or put theirs in force: callq config apply, or SIGHUP",
			"not all live dispatchers agree: %s: another configuration than the one in force, which %s",
			strings.Join(s.Others, ", "), s.Policy)
	}
	for _, difference := range s.HTTPTask {
		list.add(Problem{Check: "http settings"},
			"give them the same http_task, or Config.HTTP, and send each SIGHUP, or restart those with the old one",
			"live workers differ on %s: a call goes where any of them may send it, and back unsent from one that may not", difference)
	}
	s.addWaiting(&list)
	for _, l := range s.Limits {
		l.addProblems(&list)
	}
	for _, q := range s.Queues {
		list.addPauses(Problem{Queue: q.Name}, "queue", q.Name, q.Paused != nil, q.StateText(), q.PausedKeys)
	}
	for _, l := range s.Limits {
		list.addPauses(Problem{Limit: l.Name}, "limit", l.Name, strings.HasPrefix(l.State, "paused"), l.StateText(), l.PausedKeys)
	}
	return list
}

// addWaiting adds what waits and nobody takes, most calls first: tasks without a worker, and queues that are not in force.
// Calls that are not yet due count too: nobody would notice until they are.
func (s *Status) addWaiting(list *problems) {
	tasks, queues := slices.Clone(s.Unhandled), slices.Clone(s.Queues)
	slices.SortStableFunc(tasks, func(a, b Unhandled) int { return cmp.Compare(b.Waiting, a.Waiting) })
	slices.SortStableFunc(queues, func(a, b Queue) int { return cmp.Compare(b.Waiting, a.Waiting) })
	for _, t := range tasks {
		fix := fmt.Sprintf(`start a worker whose program has w.Handle("%s", …), or cancel them: callq calls cancel`, t.Task)
		switch {
		case t.Label != "":
			fix = "start one with worker.labels: [" + t.Label + "]"
		case t.Task == "http":
			fix = "callq work"
		}
		list.add(Problem{Check: "tasks", Task: t.Task}, fix, "%s", t)
	}
	for _, q := range queues {
		if !q.Configured && q.Waiting > 0 {
			list.add(Problem{Check: "queues", Queue: q.Name}, "add it under queues in the configuration, and send the processes SIGHUP",
				"%d calls wait in queue %s, which is not in force", q.Waiting, Short(q.Name))
		}
	}
}

// addProblems adds that the limit lets nothing through, or has a rate that an operator set. One that no queue uses is
// left out.
func (l Limit) addProblems(list *problems) {
	const lost = "Postgres failed over or was restored"
	opens := "nothing: it opens by itself; sooner, where you know what was sent: callq limits open " + l.Name + " --reason …"
	about, until := Problem{Check: "limits", Limit: l.Name}, Instant(l.MissingUntil)
	note := about
	note.Note = true
	if l.Idle() {
		return
	}
	if strings.HasPrefix(l.State, "shut") && l.State != shutMissing {
		list.add(about, "start a dispatcher, which counts what was used; that waits until attempts under a former rule have ended",
			"limit %s is %s; what it has used is not yet counted", l.Name, l.State)
	}
	switch {
	case l.MissingUntil != nil && l.KnownAt != nil:
		list.add(note, opens, "what was left of limit %s at %s counts as used until %s: %s, and of what was given out last "+
			"some may be missing", l.Name, Instant(l.KnownAt), until, lost)
	case l.MissingUntil != nil:
		list.add(about, opens, "limit %s is shut until %s: of what was sent before, some may be missing (%s, or retention had "+
			"removed it before the limit was as it is)", l.Name, until, lost)
	}
	if l.Config != nil {
		list.add(note, "callq limits reset "+l.Name, "limit %s has a rate that an operator set, not the configuration's", l.Name)
	}
}

// addPauses adds pauses, which are easily forgotten: of all calls, and of keys alone.
func (p *problems) addPauses(about Problem, what, name string, paused bool, state string, keys int64) {
	about.Check, about.Note = "pauses", true
	resume := fmt.Sprintf("callq %ss resume %s", what, name)
	if paused {
		p.add(about, resume, "%s %s is %s", what, Short(name), state)
	}
	if keys > 0 {
		p.add(about, resume+" --key …", "%d keys of %s %s are paused", keys, what, Short(name))
	}
}
