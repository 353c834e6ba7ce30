package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/words"
)

// Verdict says in a sentence how callq does, and what somebody should know or do, the worst first.
type Verdict struct {
	Level    Level     `json:"level"`
	Headline string    `json:"headline"`
	Points   []Finding `json:"points"` // each with at most one thing to do; none: all is well
}

// judge judges the status: its problems, then what holds calls back.
func (s *Status) judge() Verdict {
	v := Verdict{Level: OK, Points: s.Problems()}
	problems := int64(0)
	for _, p := range v.Points {
		if p.Level == Problem {
			problems++
		}
	}
	waiting := map[string]int64{}
	var all int64
	for _, q := range s.Queues {
		waiting[q.Name] = q.Due
		all += q.Due
	}
	held := int64(0)
	list := findings(v.Points)
	for _, l := range s.Limits {
		due := int64(0)
		for _, q := range l.Queues {
			due += waiting[q]
		}
		if l.addHeld(&list, due) {
			held++
		}
	}
	s.addTrends(&list)
	v.Points = list
	rank := map[Level]int{Problem: 0, Note: 1, OK: 2}
	slices.SortStableFunc(v.Points, func(a, b Finding) int { return cmp.Compare(rank[a.Level], rank[b.Level]) })
	wait := "nothing waits"
	if all > 0 {
		wait = words.Count(all, "call") + " " + words.Verb(all, "waits", "wait")
	}
	switch {
	case problems > 0:
		v.Level, v.Headline = Problem, words.Count(problems, "problem")+"; "+wait
	case held > 0:
		v.Level, v.Headline = Note, fmt.Sprintf("%s %s calls back; %s", words.Count(held, "limit"), words.Verb(held, "holds", "hold"), wait)
	case len(v.Points) > 0:
		v.Level, v.Headline = Note, fmt.Sprintf("%s to know; %s", words.Count(int64(len(v.Points)), "thing"), wait)
	default:
		v.Headline = "All is well; " + wait
	}
	return v
}

// addHeld adds that a limit that is closed or full keeps calls waiting.
func (l Limit) addHeld(list *findings, due int64) (held bool) {
	about := Finding{Check: "limits", Level: Note, Limit: l.Name}
	wait := fmt.Sprintf("; %s %s for it", words.Count(due, "call"), words.Verb(due, "waits", "wait"))
	switch {
	case l.Idle() || due == 0:
		return false
	case strings.HasPrefix(l.State, "refused"), strings.HasPrefix(l.State, "probed"):
		about.Fix = "callq limits advise " + l.Name
	case strings.HasPrefix(l.State, "paused"):
		about.Fix = "callq limits resume " + l.Name
	case l.State == "open" && l.Room == 0:
		about.Fix = "callq limits forecast " + l.Name
	default:
		return false
	}
	if l.State == "open" {
		text := "is full"
		if l.OpensAt != nil {
			text += ", " + nextUnit(*l.OpensAt, l.now)
		}
		list.add(about, "limit %s %s%s", Printable(Short(l.Name)), text, wait)
		return true
	}
	list.add(about, "limit %s is %s%s", Printable(Short(l.Name)), l.stateUntil(Short(l.State)), wait)
	return true
}

// trendOver is the time over which a backlog is said to grow.
const trendOver = 10 * time.Minute

// trend is how many calls of a queue were due a while ago.
type trend struct {
	Queue string    `db:"queue"`
	Due   int64     `db:"due"`
	At    time.Time `db:"minute"`
}

// The first minute of the last ten.
const trendsSQL = `
SELECT DISTINCT ON (queue) queue, due, minute FROM callq.call_queue_history
WHERE minute > clock_timestamp() - $1::interval - interval '1 minute' ORDER BY queue, minute`

// addTrends adds which backlogs grow: as many calls as came in five minutes, and a call a minute at least.
func (s *Status) addTrends(list *findings) {
	for _, t := range s.trends {
		over := s.At.Sub(t.At.Add(time.Minute)).Minutes()
		i := slices.IndexFunc(s.Queues, func(q Queue) bool { return q.Name == t.Queue })
		if i < 0 || over < 3 {
			continue
		}
		due := s.Queues[i].Due
		if by := float64(due-t.Due) / over; by >= 1 && float64(due) > 5*by {
			list.add(Finding{Check: "queues", Level: Note, Queue: t.Queue, Fix: "callq queues forecast " + t.Queue},
				"queue %s grows by %s a minute: %s %s due", Printable(Short(t.Queue)), words.Number(int64(by)), words.Count(due, "call"), words.Verb(due, "is", "are"))
		}
	}
}
