package callqueue

import (
	"sync"
	"time"
)

// WakeChannel is the NOTIFY channel that wakes the dispatchers. Nothing depends on a wake's arrival. Its payload is empty
// or WakeFreed.
const WakeChannel = "callq_wake"

// WakeFreed is the payload of a wake that says that units of a limit came free. The dispatchers then also look at queues
// whose limits could not have had capacity yet.
const WakeFreed = "freed"

// A NOTIFY per insert makes all committing producers wait for one another: it cost 0.37x.
const wakeEvery = 20 * time.Millisecond

const wakeSQL = `SELECT pg_notify('` + WakeChannel + `', '')`

const wakeFreedSQL = `SELECT pg_notify('` + WakeChannel + `', '` + WakeFreed + `')`

// waker decides which inserts send a wake: one every 20 ms at most. A last wake follows 20 ms after the last insert that
// sent none, so that the end of a burst does not wait for the dispatchers' next tick.
type waker struct {
	send func() // sends a wake outside any insert; called on the timer's goroutine

	mu    sync.Mutex
	said  time.Time
	later *time.Timer // nil: no insert relies on it
}

// now reports whether the insert that is about to be written sends a wake itself.
func (w *waker) now() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	due := now.Sub(w.said) >= wakeEvery
	if due {
		w.said = now
	}
	switch {
	case w.later != nil:
		w.later.Reset(wakeEvery)
	case !due:
		w.later = time.AfterFunc(wakeEvery, w.sendLater)
	}
	return due
}

func (w *waker) sendLater() {
	w.mu.Lock()
	w.said, w.later = time.Now(), nil
	w.mu.Unlock()
	w.send()
}
