package sim

import (
	"maps"
	"slices"
	"time"
)

// planFaults spreads what goes wrong, and what operators do, over the span.
func (w *world) planFaults() {
	s := w.set
	often := func(times float64, act func()) {
		n := int(times*float64(len(s.stretches))*s.trouble*2*w.rng.Float64() + 0.5)
		for range n {
			w.at(max(s.tick, w.moment(1)), act)
		}
	}
	for _, at := range s.stretches {
		w.at(at, func() { w.hurry = 0 })
	}
	often(3, func() { w.workers[w.rng.IntN(len(w.workers))].dieOrFreeze() })
	often(2, w.dispatcherFault)
	often(1, w.flushRedis)
	often(1, w.redisAway)
	often(1.5, w.stepClock)
	often(1, w.apiOutage)
	often(2, func() {
		w.api.refuseAll(w.between(10*time.Millisecond, min(pick(w, time.Second, 10*time.Second, time.Minute, 2*s.window), s.stretch/3)))
	})
	if s.queues {
		often(4, func() {
			w.api.standStill(w.between(100*time.Millisecond, min(pick(w, time.Second, 5*time.Second, 20*time.Second, time.Minute), s.stretch/5)))
		})
	}
	often(0.5, w.failOver)
	if w.mutant.often != nil {
		for range 6 * len(s.stretches) {
			w.at(max(s.tick, w.moment(1)), func() { w.mutant.often(w) })
		}
	}
	often(2, w.operate)
	often(1, w.cancelCalls)
	often(0.7, w.deleteCalls)
	often(0.7, w.retain)
	for range 8 * len(s.stretches) {
		w.at(w.moment(1), func() { w.pace = pick(w, prompt, late, mixed) })
	}
	w.at(w.moment(1), w.verify)
	w.at(s.span, w.heal)
}

// freezing is for how long something stands still: shorter and longer than each bound there is.
func (w *world) freezing() time.Duration {
	return w.between(0, pick(w, 200*time.Millisecond, 6*time.Second, 40*time.Second, 2*w.set.window))
}

func (k *worker) dieOrFreeze() {
	switch {
	case k.dead:
	case k.w.chance(0.5):
		k.die()
	default:
		k.freeze(k.w.freezing())
	}
}

func (w *world) dispatcherFault() {
	p := w.dispatchers[w.rng.IntN(len(w.dispatchers))]
	if w.chance(0.5) {
		if !w.unseen && !w.stepLost() {
			p.restart()
		}
		return
	}
	p.frozen = min(w.now+w.freezing(), max(w.set.span, w.now))
	w.note(0, "", "%s freezes until %s", p, p.frozen)
}

func (w *world) flushRedis() {
	w.note(0, "", "Redis forgets everything")
	w.lane.redis.FlushAll()
}

func (w *world) redisAway() {
	if w.redisDown {
		return
	}
	d := w.freezing()
	w.note(0, "", "Redis is away for %s", d)
	w.redisDown = true
	w.lane.redis.SetError("away")
	w.at(min(w.now+d, w.set.span), func() {
		w.note(0, "", "Redis is back")
		w.redisDown = false
		w.lane.redis.SetError("")
		w.handedOver()
	})
}

// stepClock sets Postgres's clock. A dispatcher that starts before any other has seen a step forward cannot know of it:
// that is outside the promise. So is a step back among the commits that a failover loses, or before it was seen.
func (w *world) stepClock() {
	by := w.between(0, pick(w, 20*time.Millisecond, w.set.window/2, w.set.window/2, 2*w.set.window, min(20*w.set.window, time.Hour)))
	if w.chance(0.5) {
		by = -by
	}
	if by > 0 {
		if !w.seen() {
			return
		}
		w.unseen = true
	}
	if by < 0 && w.switching() {
		return
	}
	if by > 0 && w.chance(0.5) { // what is counted anew must reach back behind the step
		w.after(w.between(0, w.set.window), func() {
			if !w.healing {
				w.setLimit(w.set.rules.Limits[0])
			}
		})
	}
	w.beat()                                                                                               // so far they are of the former time
	maps.DeleteFunc(w.pauses, func(_ pauseOf, until time.Time) bool { return !until.After(w.postgres()) }) // over is over
	w.offset += by
	w.stepped, w.steppedAt = w.stepped+by.Abs(), w.now
	w.back = w.back || by < 0
	w.note(0, "", "Postgres's clock is set by %s", by)
}

// seen says whether every dispatcher has seen the clock as it is: it lives, and has looked since the last
// step. (Here ticks that cannot decide anything are left out; Run's would have seen it.)
func (w *world) seen() bool {
	for _, p := range w.dispatchers {
		if p.down || p.looked < w.steppedAt {
			return false
		}
	}
	return true
}

// switching says whether a failover is about to lose what happens, or was, and not every dispatcher has seen that.
func (w *world) switching() bool {
	return w.saved != nil || slices.ContainsFunc(w.dispatchers, func(p *process) bool { return p.looked < w.promotedAt })
}

// stepLost says whether a failover loses a step of the clock that only dispatchers know of that live.
func (w *world) stepLost() bool { return w.switching() && w.steppedAt >= w.savedAt && w.savedAt > 0 }

func (w *world) apiOutage() {
	w.note(0, "", "the API answers nothing")
	w.outage = true
	w.after(w.between(0, w.set.window), func() { w.outage = false; w.note(0, "", "the API answers again") })
}

// heal ends the faults. From here on everything must drain.
func (w *world) heal() {
	w.note(0, "", "the world heals")
	w.healing, w.outage, w.pace = true, false, mixed
	w.resumeAll()
}
