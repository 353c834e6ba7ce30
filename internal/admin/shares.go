package admin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/forecast"
	"github.com/callq/callq/internal/limit"
)

// Share is a part of a limit that some calls are guaranteed.
type Share struct {
	Name    string  `json:"name"`    // a queue's, "priority 0-2", retries or rest
	Percent float64 `json:"percent"` // of the limit
	Units   float64 `json:"units"`   // the same, of what the limit has at once; of one per key, of a key's
	Used    int64   `json:"used"`    // units of its calls that are open, or ended within UsedWithin
	Waiting int64   `json:"waiting"` // due calls
}

// UsedWithin is the time before now of which [Share] tells what was used.
const UsedWithin = time.Minute

// shareUse is what calls of a share use.
type shareUse struct {
	Limit string `db:"limit_name"`
	Share string `db:"share"`
	Units int64  `db:"units"`
}

// A call that is not charged by cost takes a unit.
const shareUseSQL = `
SELECT s.limit_name, s.share, sum(CASE WHEN l.count_cost THEN s.cost ELSE 1 END)::bigint AS units
FROM (
    SELECT e.key AS limit_name, e.value AS share, o.cost FROM callq.call_open o CROSS JOIN LATERAL jsonb_each_text(o.shares) e
    WHERE o.shares IS NOT NULL
    UNION ALL
    SELECT e.key, e.value, coalesce(a.settled, a.cost) FROM public.call_attempts a CROSS JOIN LATERAL jsonb_each_text(a.shares) e
    WHERE a.shares IS NOT NULL AND a.finished_at > clock_timestamp() - $1::interval AND a.started_at IS NOT NULL
) s JOIN callq.call_limits l ON l.name = s.limit_name
GROUP BY 1, 2`

// shareWaits are due calls of flows of a queue.
type shareWaits struct {
	Queue    string `db:"queue"`
	Priority int16  `db:"priority"`
	Calls    int64  `db:"calls"`
}

const shareWaitsSQL = `
SELECT queue, priority, sum(calls)::bigint AS calls
FROM (
    SELECT queue, priority, calls FROM callq.call_flows WHERE queue = ANY($1) AND calls > 0
    UNION ALL
    SELECT queue, priority, calls FROM callq.call_inbox WHERE queue = ANY($1) AND calls > 0 AND at <= clock_timestamp()
) b
GROUP BY 1, 2`

// addParts adds to limits what their shares use.
func (r *reader) addParts(limits []Limit) {
	var queues []string
	for _, l := range limits {
		if len(l.Shares) > 0 {
			queues = append(queues, l.Queues...)
		}
	}
	if queues == nil {
		return
	}
	used := list[shareUse](r, "read what shares use", shareUseSQL, UsedWithin)
	waits := list[shareWaits](r, "read what waits in shares", shareWaitsSQL, queues)
	for i := range limits {
		l := &limits[i]
		for _, name := range slices.Sorted(maps.Keys(l.Shares)) {
			s := Share{Name: name, Percent: l.Shares[name], Units: float64(l.InAll()) * l.Shares[name] / 100}
			for _, u := range used {
				if u.Limit == l.Name && u.Share == name {
					s.Used += u.Units
				}
			}
			for _, w := range waits {
				f := backlog.Flow{Priority: w.Priority}
				if slices.Contains(l.Queues, w.Queue) && l.Shares.Of(w.Queue, f.Rank(), f.Retries()) == name {
					s.Waiting += w.Calls
				}
			}
			l.Parts = append(l.Parts, s)
		}
	}
}

// shareText says which share of the limit a call is of; empty: the limit has none.
func (l Limit) shareText(call *callqueue.Record) string {
	name := l.Shares.Of(call.Queue, min(max(call.Priority, 0), 9), call.Status == callqueue.StatusError)
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; of it %s is for the share %s, which the call is of", limit.Part(l.Shares[name]), name)
}

// A forecast takes the calls of a queue that are of different shares of a limit for queues of their own, which have weights.

// part is of which calls of a queue a world's queue is.
type part struct {
	names []string // the shares of its limits with shares, in the order of the limits
	ranks []int16  // the priorities of its flows; nil: all
}

// sharesOf are the shares that calls of a flow are of, one of each limit that has some.
func (o *outlook) sharesOf(q worldQueue, f backlog.Flow) (names []string) {
	for _, l := range o.limits {
		if len(l.Shares) > 0 && slices.Contains(q.Limits, l.Name) {
			names = append(names, l.Shares.Of(q.Name, f.Rank(), f.Retries()))
		}
	}
	return names
}

// split makes as many queues of each as its calls have shares.
func (o *outlook) split(queues []worldQueue) (split []worldQueue) {
	for _, q := range queues {
		var parts []worldQueue
		for _, rank := range allRanks() {
			names := o.sharesOf(q, backlog.Flow{Priority: rank})
			place := slices.IndexFunc(parts, func(p worldQueue) bool { return slices.Equal(p.names, names) })
			if place < 0 {
				place, parts = len(parts), append(parts, q)
				parts[place].names = names
			}
			parts[place].ranks = append(parts[place].ranks, rank)
		}
		if len(parts) == 1 {
			parts[0].ranks = nil
		}
		split = append(split, parts...)
	}
	return split
}

// place is that of the queue of a queue's calls with a flow's priority; -1: there is none.
func (o *outlook) place(queue string, rank int16) int {
	return slices.IndexFunc(o.queues, func(q worldQueue) bool {
		return q.Name == queue && (q.ranks == nil || slices.Contains(q.ranks, rank))
	})
}

// splitNames are the queues that have parts.
func (o *outlook) splitNames() (names []string) {
	for _, q := range o.queues {
		if q.ranks != nil {
			names = append(names, q.Name)
		}
	}
	return names
}

func allRanks() (ranks []int16) {
	for rank := range int16(20) {
		ranks = append(ranks, rank)
	}
	return ranks
}

// rankOf is the priority of the flow that a call is in.
func (o *outlook) rankOf(call *callqueue.Record) int16 {
	rank := int16(min(max(call.Priority, 0), 9))
	place := o.place(call.Queue, rank)
	if place < 0 || call.Status != callqueue.StatusError || len(o.sharesOf(o.queues[place], backlog.Flow{})) == 0 {
		return rank
	}
	if retry := rank + 10; !slices.Equal(o.sharesOf(o.queues[place], backlog.Flow{Priority: retry}), o.sharesOf(o.queues[place], backlog.Flow{Priority: rank})) {
		return retry
	}
	return rank
}

// weigh has the queues with calls that share a limit start as many as their share's part says. Those of one share have as many each.
func (o *outlook) weigh() {
	for place, l := range o.limits {
		if len(l.Shares) == 0 {
			continue
		}
		of, busy := map[string][]*forecast.Queue{}, 0.0
		for i := range o.Queues {
			if q := &o.Queues[i]; slices.Contains(q.Limits, place) && len(q.Keys) > 0 {
				name := l.Shares.Of(o.queues[i].Name, o.queues[i].flow().Rank(), o.queues[i].flow().Retries())
				of[name] = append(of[name], q)
				busy++
			}
		}
		for name, queues := range of {
			for _, q := range queues {
				q.Weight = l.Shares[name] / 100 * busy / float64(len(queues))
			}
		}
	}
}

// flow is one of the part's flows.
func (p part) flow() backlog.Flow {
	if p.ranks == nil {
		return backlog.Flow{Priority: callqueue.DefaultPriority}
	}
	return backlog.Flow{Priority: p.ranks[0]}
}

// String names the shares: retries of llm.
func (p part) String() string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(p.names))), " and ")
}
