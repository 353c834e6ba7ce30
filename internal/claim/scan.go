package claim

import (
	"slices"
	"time"
)

// scanWindow is how far back polls look for what fell due. While somebody holds an old snapshot, an index keeps entries that
// were long dealt with, and reading them all takes longer and longer. So a poll goes back to the beginning only if that has
// not just been slow, else to a little before the last drain, and the further before it the more seldom: what was committed a while
// after it fell due waits at most four times as long, or until a whole poll. A drain begins where its poll found the first row; if that
// found none, there is no drain.
type scanWindow struct {
	drained map[string]time.Time // queue to the time on Postgres's clock up to which its last drain left nothing; zero: unknown
	found   map[string]firsts    // queue to what this poll found
	whole   bool                 // this poll goes back to the beginning
	rest    time.Time            // until when polls need not go back to the beginning
	next    [scanSteps]time.Time // nor by each step
	least   time.Duration        // that a poll took which was not whole; zero: unknown
}

// firsts is when a queue's first inbox row and its first parked flow fall due. Zero: before all times that Go has; nil: there is none.
type firsts struct{ inbox, flow *time.Time }

const (
	scanNear  = 250 * time.Millisecond // nearly all transactions that insert are shorter
	scanSteps = 5                      // from scanNear on, each goes back four times as far, once in half that time
	scanRest  = 1000                   // a slow whole poll takes at most one part in so many of the time
	scanCheap = time.Millisecond       // one that takes twice as long as another poll, and this, is slow
)

// begin begins a poll. It returns, for each queue where that does not go back to the beginning, how far it does.
func (r *scanWindow) begin(now time.Time) (since map[string]time.Time) {
	r.found = map[string]firsts{}
	r.whole = !now.Before(r.rest)
	behind, step := scanNear, scanNear
	for i, next := range r.next {
		if r.whole || !now.Before(next) {
			behind, r.next[i] = step, now.Add(step/2)
		}
		step *= 4
	}
	if r.whole {
		return nil
	}
	since = map[string]time.Time{}
	for queue, at := range r.drained {
		if !at.IsZero() {
			since[queue] = at.Add(-behind)
		}
	}
	return since
}

// end notes from when to a poll has read, and what it found.
func (r *scanWindow) end(began, now time.Time, queues []dueQueue) {
	took := now.Sub(began)
	switch {
	case r.whole && took > 2*r.least+scanCheap:
		r.rest = now.Add(scanRest * took)
	case !r.whole && (r.least == 0 || took < r.least):
		r.least = took
	}
	for _, q := range queues {
		r.found[q.Name] = firsts{q.InboxAt, q.FlowAt}
	}
}

// again is in how long to poll again.
func (r *scanWindow) again(now time.Time) time.Duration {
	if r.whole {
		return pollLater
	}
	return slices.MinFunc(append(r.next[1:], r.rest), time.Time.Compare).Sub(now)
}

// since is from where on a drain within the poll reads the inbox and parked flows. Zero: from the beginning; in the future: it need not.
func (r *scanWindow) since(queue string) (inbox, flow time.Time) {
	found, polled := r.found[queue]
	if !polled {
		return inbox, flow
	}
	return orNever(found.inbox), orNever(found.flow)
}

func orNever(first *time.Time) time.Time {
	if first == nil {
		return time.Unix(1<<40, 0)
	}
	return *first
}

// lowWater is a low-water mark: no open attempt is of a batch with a smaller number. Claims draw the numbers under the capacity
// lock, so what is committed after a claim has read has a larger one than all that it saw. So no claim has to read what
// has ended since, which an index keeps while somebody holds an old snapshot. Another epoch, or a number that does not rise,
// means that these are not the data that were read: then nothing is known.
type lowWater struct {
	epoch string
	drawn int64 // the last number
	from  int64
	kept  int64     // the last number of a claim that was committed: no crash gives out one that is not larger
	at    time.Time // of that, by Postgres's clock
}

// wentBack reports whether the data are older than what was committed here: they were restored in place.
func (o *lowWater) wentBack(epoch string, batch int64) bool {
	return epoch == o.epoch && batch <= o.kept
}

// draw notes the number of a claim, and returns from where on it must read.
func (o *lowWater) draw(epoch string, batch int64) int64 {
	if epoch != o.epoch || batch <= o.drawn {
		*o = lowWater{epoch: epoch}
	}
	o.drawn = batch
	return o.from
}

// found notes the smallest number that the claim which drew last has found open; nil: none. The claim must be committed: after
// a crash, numbers of what was rolled back may be drawn again. (Larger ones than it drew exist if the sequence was set back.)
func (o *lowWater) found(smallest *int64, at time.Time) {
	o.from, o.kept, o.at = o.drawn, o.drawn, at
	if smallest != nil {
		o.from = min(o.drawn, *smallest)
	}
}

// in is the bound in an epoch.
func (o *lowWater) in(epoch string) int64 {
	if epoch != o.epoch {
		return 0
	}
	return o.from
}
