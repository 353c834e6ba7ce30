package claim

import "time"

// MinGap is the least time between polls.
const MinGap = 5 * time.Millisecond

const (
	fullRetry = 20 * time.Millisecond
	doorRetry = 50 * time.Millisecond  // a probe has no answer yet
	judgeWait = 200 * time.Millisecond // see unjudged
	standFor  = 250 * time.Millisecond // another dispatcher claims
	standMost = 5 * time.Second        // for so long at most
	errRetry  = time.Second
	downRetry = 2 * time.Second // Redis is away, and a queue needs its budgets
	pollLater = time.Minute     // ticks come sooner
)

// event is what ended a claim, or kept it from beginning.
type event int

const (
	none      event = iota
	claimed         // what could be
	notDue          // for wait
	blocked         // no unit of a limit comes free, for wait
	locked          // another claim holds the queue or one of its limits
	setBack         // Postgres's clock was set back, or its data restored, during the claim
	outdated        // the epoch has just been entered: begin again
	unjudged        // workers are being asked what a failover lost
	uncounted       // recovery has yet to count a limit's usage
	reserved        // a limit, by another queue, for wait
	closed          // the queue's hours, for wait
	paused          // the queue or one of its limits, for wait
	short           // a budget, for wait
	unserved        // no worker carries the queue's label
	full            // the workers
)

// state is what outcomeOf has to know besides the event.
type state struct {
	wait      time.Duration // how long the event lasts; of claimed, until a unit comes free for what was left waiting
	told      bool          // what frees the missing unit notifies
	stuck     bool          // a limit that all keys share lacks units
	more      bool          // another claim may find more
	soon      bool          // there may be something of which nothing tells
	someFull  bool          // a pool of workers is full
	allFull   bool
	highWater bool // all pools have more waiting than they finish before the next poll
}

// outcome describes when a queue, or a dispatcher, polls next.
type outcome struct {
	pollIn     time.Duration // if not more
	blockedFor time.Duration // nothing can be claimed before; 0: the limits have room
	more       bool          // another claim right away may find more
	hurried    bool          // likewise, once a slot or a unit of a concurrency limit comes free
}

// outcomeOf decides when to poll again after what became of a claim.
func outcomeOf(e event, s state) outcome {
	o := outcome{pollIn: pollLater}
	switch e {
	case locked, setBack:
		o.pollIn = MinGap
	case outdated:
		o = outcome{pollIn: MinGap, more: true}
	case unjudged:
		o = outcome{pollIn: judgeWait, blockedFor: judgeWait}
	case uncounted:
		o = outcome{pollIn: errRetry, blockedFor: errRetry}
	case reserved, short, closed:
		wait := min(s.wait, pollLater)
		o = outcome{pollIn: wait, blockedFor: wait}
	case notDue, blocked, paused:
		o.pollIn = min(s.wait, pollLater)
	case full:
		o = outcome{pollIn: fullRetry, hurried: true}
		if s.highWater { // to read all open attempts would be for nothing, even if there is news
			o.blockedFor = fullRetry
		}
	case claimed:
		if s.more && s.allFull {
			return outcomeOf(full, s)
		}
		o = outcome{pollIn: s.wait, more: s.more, hurried: s.someFull || s.told}
		if s.stuck && !s.told {
			o.blockedFor = s.wait
		}
	}
	if s.soon {
		o.pollIn = min(o.pollIn, MinGap)
	}
	return o
}
