package limit

import "fmt"

// SlidingWindowCounter allows one after another, evenly, and so many that no estimate from two windows is over.
const SlidingWindowCounter Algorithm = "sliding_window_counter"

// slidingWindowCounter is for APIs that allow N by an estimate: what they counted in the current window of a clock, and of the count
// of the former window the part that a window of length W up to now still covers. Where their windows begin is not known.
//
// It is a sliding window of one unit each s = W/(N-1). Let the first request of the current window come at an offset a, and the
// one that is estimated m requests later, so at a + m x s or after that. The former window has at most N-1. So the estimate is
//
//	(N-1) x (1 - (a + m x s)/W) + m + 1 = N - a/s
//
// at most, and N is not exceeded wherever windows begin. No shorter spacing does that: if the first comes as a window begins,
// the former has N-1 at least, and the estimate of the second is (N-1) x (1 - s/W) + 2, which is more than N if s is less than
// W/(N-1). If N is 1, a request must find no other in both windows: s is 2 x W.
type slidingWindowCounter struct{ slidingWindow }

func (slidingWindowCounter) traits() Traits {
	return Traits{Name: SlidingWindowCounter, OneRate: true, OneByOne: true}
}

func (slidingWindowCounter) validate(w written, _ Shape) (Rate, error) {
	r, err := w.rate()
	if err != nil {
		return Rate{}, err
	}
	window, parts := r.Window, r.Units-1
	if parts == 0 {
		window, parts = 2*window, 1
	}
	if window > MaxWindow {
		return Rate{}, fmt.Errorf("1 per %s, by an estimate from two windows, takes more than %d days", r.Length(), MaxWindow/day)
	}
	each, err := w.spacing(window, parts, "half the rate, with algorithm: sliding_window, stays below an estimate, too")
	return Rate{1, each, Shape{Algorithm: SlidingWindowCounter, Period: r.Length(), Counted: w.units}}, err
}
