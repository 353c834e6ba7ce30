package claim

import (
	"strings"
	"sync"
	"time"
)

// waits is the longest that a due call had to wait for the next unit of each limit. Claims write it, the history takes it each minute.
// While a limit is known to have no units nothing is claimed: then what the last claim saw goes on until units come free.
type waits struct {
	mu sync.Mutex
	of map[string]unitWait
}

type unitWait struct {
	longest time.Duration // since it was taken
	until   time.Time     // when the next unit comes free, as the last claim saw it; zero: there are some
}

// saw notes for how long calls that a claim left waiting lack units. When a unit of a limit of concurrency comes free is not known.
func (w *waits) saw(h *headroom, left []held, now time.Time) {
	lack := map[string]time.Duration{}
	for _, call := range left {
		for of, l := range h.lacking(call) {
			at := h.nextLook[of]
			if _, lowered := h.resets[of]; !lowered {
				at = at.Add(h.ahead / 2) // see headroom.counted
			}
			if wait := at.Sub(h.now); l.Window > 0 || l.Missing(h.now, 0) != nil {
				lack[of.Limit] = max(lack[of.Limit], wait)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range h.limits {
		has, known := w.of[l.Name]
		switch wait := lack[l.Name]; {
		case strings.HasSuffix(l.Name, doorSuffix): // the limit is closed
		case wait > 0:
			w.of[l.Name] = unitWait{max(has.longest, wait), now.Add(wait)}
		case known:
			w.of[l.Name] = unitWait{longest: has.longest}
		}
	}
}

// freed tells that units may have come free that no claim could foresee.
func (w *waits) freed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, has := range w.of {
		w.of[name] = unitWait{longest: has.longest}
	}
}

func (w *waits) take(now time.Time) map[string]time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := map[string]time.Duration{}
	for name, has := range w.of {
		taken[name] = has.longest
		if lasts := has.until.Sub(now); lasts > 0 {
			w.of[name] = unitWait{lasts, has.until}
		} else {
			delete(w.of, name)
		}
	}
	return taken
}
