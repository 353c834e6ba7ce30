package advise

import "time"

// counter is how a limiter counts: it refuses a request if level and the request's cost exceed its capacity. Times are
// nanoseconds since 1970, and only grow.
type counter interface {
	level(at int64) float64
	add(at int64, cost float64, admitted bool) // after level, of the same time
}

// kind is a way of counting.
type kind int

// In the order in which ties prefer them: what needs fewer assumptions first.
const (
	sliding  kind = iota // any window
	spacing              // one, and then none for a while
	first                // windows that begin with a request
	clock                // windows of a clock
	bucket               // a burst that fills again
	log                  // any window, refused requests count
	estimate             // the former window of a clock counts for the part that it overlaps
	rolling              // likewise of a counter that rolls on, and refused requests count
	elastic              // a window that each request extends
)

// model is a limiter with its parameters.
type model struct {
	kind     kind
	window   time.Duration // of a spacing or a bucket: what one unit takes
	phase    time.Duration // by which its windows begin later than those of Postgres's clock
	capacity float64
	slack    float64 // by which arrivals that are not known exactly may seem to exceed the capacity
}

// counter starts with nothing used.
func (m model) counter(begin int64) counter {
	window := int64(m.window)
	switch m.kind {
	case spacing, bucket:
		return &leaking{each: float64(window), last: begin}
	case sliding:
		return &slidingLog{window: window}
	case log:
		return &slidingLog{window: window, all: true}
	case first:
		return &fromFirst{window: window, began: begin - window}
	case clock:
		return &ofClock{window: window, phase: int64(m.phase)}
	case estimate:
		return &twoWindows{window: window, tick: begin - mod(begin-int64(m.phase), window)}
	case rolling:
		return &twoWindows{window: window, tick: begin - int64(m.phase), restarts: true, all: true}
	}
	return &extended{window: window, last: begin - window}
}

// mod is the remainder, which is never negative.
func mod(a, b int64) int64 { return (a%b + b) % b }

// leaking is a bucket that leaks a unit each so many nanoseconds: GCRA, limit_req and token buckets.
type leaking struct {
	each, full float64
	last       int64
}

func (c *leaking) level(at int64) float64 { return max(0, c.full-float64(at-c.last)/c.each) }

func (c *leaking) add(at int64, cost float64, admitted bool) {
	if admitted {
		c.full, c.last = c.level(at)+cost, at
	}
}

// slidingLog knows each request of the last window.
type slidingLog struct {
	window int64
	all    bool // refused requests count, too
	log    []counted
	sum    float64
}

type counted struct {
	at   int64
	cost float64
}

func (c *slidingLog) level(at int64) float64 {
	for len(c.log) > 0 && at-c.log[0].at >= c.window {
		c.sum -= c.log[0].cost
		c.log = c.log[1:]
	}
	return c.sum
}

func (c *slidingLog) add(at int64, cost float64, admitted bool) {
	if admitted || c.all {
		c.log = append(c.log, counted{at, cost})
		c.sum += cost
	}
}

// fromFirst begins a window with the first request after the last window.
type fromFirst struct {
	window, began int64
	used          float64
}

func (c *fromFirst) level(at int64) float64 {
	if at-c.began >= c.window {
		return 0
	}
	return c.used
}

func (c *fromFirst) add(at int64, cost float64, admitted bool) {
	if at-c.began >= c.window {
		c.began, c.used = at, 0
	}
	if admitted {
		c.used += cost
	}
}

// ofClock counts in the windows of a clock.
type ofClock struct {
	window, phase, began int64
	used                 float64
}

func (c *ofClock) level(at int64) float64 {
	if began := at - mod(at-c.phase, c.window); began != c.began {
		c.began, c.used = began, 0
	}
	return c.used
}

func (c *ofClock) add(_ int64, cost float64, admitted bool) {
	if admitted {
		c.used += cost
	}
}

// twoWindows takes the former window for even, and counts the part of it that a window up to now overlaps.
type twoWindows struct {
	window, tick  int64 // tick is when the present window began
	restarts      bool  // after an idle window the next begins with a request, not by the clock
	all           bool  // refused requests count, too
	former, using float64
}

func (c *twoWindows) level(at int64) float64 {
	if n := (at - c.tick) / c.window; n > 0 {
		c.former, c.using = c.using, 0
		c.tick += n * c.window
		if n > 1 {
			c.former = 0
			if c.restarts {
				c.tick = at
			}
		}
	}
	return c.using + c.former*(1-float64(at-c.tick)/float64(c.window))
}

func (c *twoWindows) add(_ int64, cost float64, admitted bool) {
	if admitted || c.all {
		c.using += cost
	}
}

// extended counts until nothing comes for a window.
type extended struct {
	window, last int64
	used         float64
}

func (c *extended) level(at int64) float64 {
	if at-c.last >= c.window {
		c.used = 0
	}
	return c.used
}

func (c *extended) add(at int64, cost float64, _ bool) {
	c.used += cost
	c.last = at
}
