package claim

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pools"
	"github.com/callq/callq/internal/usage"
)

// A claim of a narrow limit gives one worker more calls than there is room for: a run (limit.Pace). All of them are charged at once, so
// no other claim gives out what the run has. All calls of a limit, or of a key of it, that one claim puts in runs are in one message.

// runs is how long the last run of each limit, or of a key of it, took. The next is as long as RunFor lets it be at that pace: the API
// may be slower than the limit.
type runs map[usage.Of]lastRun

type lastRun struct {
	at     time.Time
	units  int64
	others int64 // claims of other dispatchers, until then
}

const remembered = time.Minute

// size is how many units the next run may have.
func (r runs) size(of usage.Of, p limit.Pace, runFor time.Duration, now time.Time, others int64) int64 {
	most := max(int64(runFor/p.Gap), 1) * p.Room
	last, known := r[of]
	took := now.Sub(last.at)
	switch {
	case !known || took > remembered:
		return max(most/2, p.Room)
	case last.others != others: // perhaps of this limit
		return max(last.units, p.Room)
	}
	return max(min(2*last.units, int64(float64(last.units)*float64(runFor)/float64(max(took, 1))), most), p.Room)
}

// note notes what a claim gave out of the limits that may have runs.
func (r runs) note(h *headroom, now time.Time, others int64) {
	if len(r) > 10_000 {
		maps.DeleteFunc(r, func(_ usage.Of, last lastRun) bool { return now.Sub(last.at) > remembered })
	}
	for i, c := range h.counts {
		q := h.Admission[h.places[i]]
		p, paced := q.Paces[c.Key]
		if used := p.Room + h.beyond[c.Of] - q.Room[c.Key] - q.Beyond[c.Key]; paced && used > 0 {
			r[c.Of] = lastRun{now, used, others}
		}
	}
}

// mayRun adds to the headroom what runs may use beyond it. Where an API says less, or a failover may have lost something, there are none.
func (h *headroom) mayRun(r runs, now time.Time, others int64) {
	for i, c := range h.counts {
		q := h.Admission[h.places[i]]
		room := q.Room[c.Key]
		gap := c.Use.Rate.Gap(room)
		if _, lowered := h.resets[c.Of]; gap == 0 || q.Beyond[c.Key] > 0 || lowered || c.Use.Missing != nil {
			continue
		}
		p, runFor := limit.Pace{Room: room, Gap: gap}, limit.RunFor
		if len(h.limits[h.places[i]].Shares) > 0 {
			runFor = limit.SharedRunFor
		}
		h.beyond[c.Of] = max(0, r.size(c.Of, p, runFor, now, others)-room)
		q.Paces[c.Key], q.Beyond[c.Key] = p, h.beyond[c.Of]
	}
}

// evenly has calls go one by one where the API refused some that came together: in a run, so far apart that most APIs take them, and
// as many as the window has room for. It returns when the next may go, if that is later than the window has it.
func (h *headroom) evenly(c *usage.Count, q limit.Quota) (from time.Time, paced bool) {
	if c.EvenGap == 0 {
		return from, false
	}
	room := c.Use.Room(h.now, c.Gained)
	from, units := c.Use.Even(room, c.EvenGap, h.ahead, h.now)
	q.Room[c.Key], q.Soon[c.Key] = min(units, 1), nil
	if units > 0 && from.After(h.now) {
		q.Soon[c.Key] = []limit.Charge{{Until: from, Units: 1}}
	}
	if units > 1 && c.Use.Missing == nil {
		q.Paces[c.Key], q.Beyond[c.Key], h.beyond[c.Of] = limit.Pace{Room: 1, Gap: c.EvenGap}, units-1, units-1
	}
	return from, room > 0
}

// lane is the calls of a claim that wait for one another: those of a key, or all, if a limit that all keys share paces them. While
// there is room they may go to any worker. It is a run, in one message, once it has more.
type lane struct {
	to     *pools.Pool
	task   string
	shared bool // by all keys
	mixed  bool // its calls go to several pools or tasks, so it is no run
	run    bool
}

// laneOf is the lane of a key's calls; nil: nothing paces them.
func (c *candidates) laneOf(key string) *lane {
	shared, some := false, false
	for _, q := range c.head.Admission {
		p := q.Pace(key)
		some, shared = some || p != nil, shared || p != nil && !q.PerKey
	}
	if !some {
		return nil
	}
	if shared {
		key = ""
	}
	l := c.lanes[lane{shared: shared, task: key}]
	if l == nil {
		l = &lane{shared: shared}
		c.lanes[lane{shared: shared, task: key}] = l
	}
	return l
}

// inRuns is how many more calls in all a claim may put in runs.
func (h *headroom) inRuns(list *pools.Pools) int {
	for _, of := range h.beyond {
		if of > 0 {
			return list.InRuns()
		}
	}
	return 0
}

// takes reports whether the lane may have a call; beyond: for which there is no room yet. Once it is a run, all that follow are of it:
// another message of the same claim would keep to paces of its own.
func (l *lane) takes(task string, beyond bool) bool {
	if l != nil && l.run {
		return l.task == task
	}
	return !beyond || l != nil && !l.mixed && l.to != nil && l.task == task
}

// send chooses the pool that a call of the lane goes to. A call that there is no room for yet takes the slot of the one before it.
func (l *lane) send(list *pools.Pools, task string, beyond bool, random func(n int64) int64) *pools.Pool {
	switch {
	case beyond, l != nil && l.run:
		l.run = true
		l.to.InRuns++
		return l.to
	case l == nil:
		return list.Choose(task, random)
	case l.to != nil && l.task == task && (l.to.Take() || !list.CanTake(task)):
		return l.to
	}
	to := list.Choose(task, random)
	if l.to == nil {
		l.to, l.task = to, task
	}
	l.mixed = l.mixed || l.to != to || l.task != task
	return to
}

// paces are the first limits' rooms and gaps for a call of a run, as arrays in Postgres's notation, whose elements are null where a limit does
// not pace it.
func (h *headroom) paces(key string, limits int) (rooms, gaps *string) {
	var room, gap []string
	for i := range limits {
		r, g := "NULL", "NULL"
		if p := h.Admission[i].Pace(key); p != nil {
			r, g = strconv.FormatInt(p.Room, 10), strconv.FormatInt(p.Gap.Microseconds(), 10)+"us"
		}
		room, gap = append(room, r), append(gap, g)
	}
	return new("{" + strings.Join(room, ",") + "}"), new("{" + strings.Join(gap, ",") + "}")
}
