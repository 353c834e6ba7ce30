package dispatcher

import "time"

// openFrom is a bound: no open attempt is of a batch with a smaller number. Claims draw the numbers under
// the lock that they share, so what is committed after a claim has looked has a larger one than all that
// it saw: what it found open holds for good. So nothing need go through what has ended since, which an
// index keeps for as long as somebody holds an old snapshot. Another epoch, or a number that does not
// rise, says that the data are not those that were looked at: then nothing is known.
type openFrom struct {
	epoch string
	drawn int64 // the last number
	from  int64
	kept  int64 // the last number of a claim that was committed: no crash gives out one that is not larger
	// keptAt is when that was, by Postgres's clock.
	keptAt time.Time
}

// wentBack says whether the data are older than what was committed here: they were restored in place.
func (o *openFrom) wentBack(epoch string, batch int64) bool {
	return epoch == o.epoch && batch <= o.kept
}

// draw notes the number of a claim, and returns from where on it must look.
func (o *openFrom) draw(epoch string, batch int64) int64 {
	if epoch != o.epoch || batch <= o.drawn {
		*o = openFrom{epoch: epoch}
	}
	o.drawn = batch
	return o.from
}

// found notes the smallest number that the claim which drew last has found open; nil: none. It must be
// committed: a crash may give the numbers of what was rolled back out once more. (Larger ones than it drew are
// there where the sequence was set back.)
func (o *openFrom) found(smallest *int64, at time.Time) {
	o.from, o.kept, o.keptAt = o.drawn, o.drawn, at
	if smallest != nil {
		o.from = min(o.drawn, *smallest)
	}
}

// in is the bound in an epoch.
func (o *openFrom) in(epoch string) int64 {
	if epoch != o.epoch {
		return 0
	}
	return o.from
}
