// Package forecast says when waiting calls start. It gives out units as claims do, from what is occupied now: one by one where few
// calls wait, and in pieces where many do, so that a million take milliseconds. It has no I/O.
package forecast

import (
	"time"

	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/limit"
)

// World is what waits, and for what. Durations are from now on.
type World struct {
	Now    time.Time
	Limits []Limit
	Queues []Queue
}

// Limit is a limit, or the slots of workers.
type Limit struct {
	Name              string
	Rate              limit.Rate
	PerKey, CountCost bool
	Opens             time.Duration // it is shut until then
	State                           // of one per key, that of the key that is asked about
}

// State is what there is of a limit's units.
type State struct {
	Units, Room float64 // in a window, and now
	Frees       []Free  // what is occupied, if known. What is not, comes free last.
}

// Queue is a queue in which calls wait.
type Queue struct {
	Limits []int         // places in World.Limits
	Hours  hours.Hours   // in which it is open
	Opens  time.Duration // it is paused until then
	Holds  time.Duration // a call runs so long
	Lag    time.Duration // it arrives so long after it could: only then does its window begin
	Cost   float64       // of a call
	Weight float64       // of its calls, where several queues could start at the same time; 0: 1
	Keys   []Keys        // in the order of their turns
}

// Keys are keys of a queue for each of which the same waits.
type Keys struct {
	Count int64
	Calls int64         // of each
	From  time.Duration // when they are due
	Of    []State       // by place in Queue.Limits: what each key has of those per key; none: all units are free
	Asked *Asked        // nil: its calls are asked about
}

// Asked is the last call of a single key.
type Asked struct {
	From time.Duration
	Cost float64
}

// Result is what comes of a world.
type Result struct {
	// Start is when the call that is asked about starts, Before how many calls of its queue do so before it, and Others how many of
	// other queues.
	Start          time.Duration
	Before, Others int64
	// Last is, by queue, when the last call starts, if none is asked about.
	Last []time.Duration
	// Held is by place in World.Limits for how long the limit was what kept the next call waiting.
	Held []time.Duration
	// Known is false if it would take too long to say.
	Known bool
}
