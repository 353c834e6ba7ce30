package dispatcher

import "time"

// reach is how far back looks go for what fell due. While somebody holds an old snapshot, an index keeps
// what has long been dealt with, and going through it all takes longer and longer. So a look goes back
// to the beginning only when that has not just taken long, and else a little behind the last intake: what
// is older and was committed since is found by a later look: one that goes back to the beginning follows.
type reach struct {
	takenIn map[string]time.Time // queue to Postgres's time of the last intake that left nothing
	whole   bool                 // this look goes back to the beginning
	began   time.Time            // monotonic
	rest    time.Time            // until when looks need not do so again
}

const (
	reachBehind = 2 * time.Second // most transactions are shorter
	reachRest   = 20              // a whole look takes at most one part in so many of the time
)

// begin begins a look: since says, for each queue where it does not go back to the beginning, to where.
func (r *reach) begin(now time.Time) (queues []string, since []time.Time) {
	r.began, r.whole = now, !now.Before(r.rest)
	if r.whole {
		return []string{}, []time.Time{}
	}
	for queue, at := range r.takenIn {
		queues, since = append(queues, queue), append(since, at.Add(-reachBehind))
	}
	return queues, since
}

// end notes how long a look has taken so far.
func (r *reach) end(now time.Time) {
	if r.whole {
		r.rest = now.Add(reachRest * now.Sub(r.began))
	}
}

// again is in how long to look again.
func (r *reach) again(now time.Time) time.Duration {
	if r.whole {
		return lookLater
	}
	return r.rest.Sub(now)
}

// since is for an intake within the look.
func (r *reach) since(queue string) time.Time {
	at, ok := r.takenIn[queue]
	if r.whole || !ok {
		return time.Time{}
	}
	return at.Add(-reachBehind)
}

// took notes up to what, in Postgres's time, an intake left nothing; zero: the next goes on from the beginning.
func (r *reach) took(queue string, upTo time.Time) {
	if upTo.IsZero() {
		delete(r.takenIn, queue)
		return
	}
	r.takenIn[queue] = upTo
}
