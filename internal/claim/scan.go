package claim

import "time"

// scanWindow is how far back polls look for what fell due. While somebody holds an old snapshot, an index keeps entries that
// were long dealt with, and reading them all takes longer and longer. So a poll goes back to the beginning only if that has
// not just been slow, else to a little before the last drain. What is older and was committed since, the next whole poll finds.
type scanWindow struct {
	drained map[string]time.Time // queue to the time on Postgres's clock up to which its last drain left nothing; zero: unknown
	whole   bool                 // this poll goes back to the beginning
	rest    time.Time            // until when polls need not do so again
}

const (
	scanBehind = 2 * time.Second // most transactions are shorter
	scanRest   = 20              // a whole poll takes at most one part in so many of the time
)

// begin begins a poll: since is, for each queue where it does not go back to the beginning, how far it does.
func (r *scanWindow) begin(now time.Time) (queues []string, since []time.Time) {
	r.whole = !now.Before(r.rest)
	if r.whole {
		return nil, nil
	}
	for queue, at := range r.drained {
		if !at.IsZero() {
			queues, since = append(queues, queue), append(since, at.Add(-scanBehind))
		}
	}
	return queues, since
}

// end notes from when to a poll has read.
func (r *scanWindow) end(began, now time.Time) {
	if r.whole {
		r.rest = now.Add(scanRest * now.Sub(began))
	}
}

// again is in how long to poll again.
func (r *scanWindow) again(now time.Time) time.Duration {
	if r.whole {
		return pollLater
	}
	return r.rest.Sub(now)
}

// since is to where a drain within the poll goes back; zero: to the beginning.
func (r *scanWindow) since(queue string) time.Time {
	if at := r.drained[queue]; !r.whole && !at.IsZero() {
		return at.Add(-scanBehind)
	}
	return time.Time{}
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
