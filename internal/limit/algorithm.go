package limit

import (
	"strings"
	"time"
)

// Algorithm is the name of one, as it is configured and stored.
type Algorithm string

// algorithms has a line for each. A Shape without a name, or with one that is unknown, is a sliding window's.
func algorithms() []algorithm {
	return []algorithm{
		slidingWindow{},
		fixedWindow{},
		tokenBucket{},
		leakyBucket{},
		slidingWindowCounter{},
	}
}

// algorithm decides which arrivals a rate allows. Each has a file. Those that are a sliding window in part embed it.
type algorithm interface {
	traits() Traits
	validate(w written, s Shape) (Rate, error)                      // the rate that is kept of what is written
	room(u Use, now time.Time, gained time.Duration) int64          // as Use.Room
	next(u Use, now time.Time, gained time.Duration) time.Time      // as Use.NextLook, but for what is missing
	since(r Rate, now time.Time, gained time.Duration) time.Time    // as Rate.Since
	passed(r Rate, until time.Time, gained time.Duration) time.Time // as Rate.Passed
	ahead(r Rate) time.Duration                                     // as Rate.Ahead: what may go soon
	bucket(r Rate) time.Duration                                    // as Rate.Bucket
	span(r Rate) time.Duration                                      // as Rate.Span
	gap(r Rate, room int64) time.Duration                           // as Rate.Gap
}

// Traits are what the configuration, claims and forecasts ask of an algorithm.
type Traits struct {
	Name      Algorithm
	Returns   Returns
	Burst     bool // it needs one
	Timezone  bool // it may have one
	Tolerance bool // it may have one
	Spread    bool // its windows may be spread: a leaky bucket of the same rate
	OneRate   bool // it has one rate, and the same for all keys
	OneByOne  bool // it lets one call through after another, whatever they cost
}

// Returns is how units come free.
type Returns int

// How units come free.
const (
	Each     Returns = iota // a window after it was used, or once its call has ended
	Together                // when a window of the calendar ends
	Evenly                  // at a pace: when each charge was matters (Use.Charges), not how many count (Use.Occupied)
)

// Algorithms are the names of all.
func Algorithms() (names []Algorithm) {
	for _, a := range algorithms() {
		names = append(names, a.traits().Name)
	}
	return names
}

// Traits are those of the algorithm.
func (a Algorithm) Traits() Traits { return a.rules().traits() }

// Words is the name as a person writes it: token bucket.
func (a Algorithm) Words() string { return strings.ReplaceAll(string(a), "_", " ") }

func (a Algorithm) rules() algorithm {
	if a != "" {
		for _, r := range algorithms() {
			if r.traits().Name == a {
				return r
			}
		}
	}
	return slidingWindow{}
}

// Returns is how the rate's units come free.
func (r Rate) Returns() Returns { return r.Algorithm.Traits().Returns }
