package callqueue

import (
	"sync"
	"time"
)

// WakeChannel is the NOTIFY channel on which an insert tells the dispatchers to look. A wake
// carries nothing or WakeFreed, and nothing depends on its arrival.
const WakeChannel = "callq_wake"

// WakeFreed is what a wake carries that says that units of a limit came free, or that there are more
// of them: then the dispatchers look at those queues too whose limits could not have had room yet.
const WakeFreed = "freed"

// A NOTIFY per insert makes all committing producers wait for one another: it cost 0.37x.
const wakeEvery = 5 * time.Millisecond

const wakeSQL = `SELECT pg_notify('` + WakeChannel + `', '')`

const wakeFreedSQL = `SELECT pg_notify('` + WakeChannel + `', '` + WakeFreed + `')`

// waker decides which inserts say a wake. An insert comes at most 5 ms after the last wake either
// says one itself, or a last one is said once no insert has relied on it for 5 ms, so that the end
// of a burst need not wait for the dispatchers' next tick.
type waker struct {
	send func() // says a wake outside any insert; called on the timer's goroutine

	mu    sync.Mutex
	said  time.Time
	later *time.Timer
	armed bool // an insert relies on later
}

// now reports whether the insert about to be written is to say a wake itself.
func (w *waker) now() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	due := now.Sub(w.said) >= wakeEvery
	if due {
		w.said = now
	} else {
		w.armed = true
	}
	switch {
	case !w.armed:
	case w.later == nil:
		w.later = time.AfterFunc(wakeEvery, w.sendLater)
	default:
		w.later.Reset(wakeEvery)
	}
	return due
}

func (w *waker) sendLater() {
	w.mu.Lock()
	w.said, w.armed = time.Now(), false
	w.mu.Unlock()
	w.send()
}
