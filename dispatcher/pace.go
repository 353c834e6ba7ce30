package dispatcher

import "time"

// pace keeps polls apart where they are many: a poll that claims costs as much as several calls, and all that arrives before the
// next shares it. A few may follow one another at once. Source: the generic cell rate algorithm, ITU-T I.371.
type pace struct{ next time.Time } // when the next poll would be, if all were evenly apart

const (
	pollEvery = 80 * time.Millisecond
	pollBurst = 4
)

// in is how long the next poll has to wait; 0 or less: it need not.
func (p pace) in(now time.Time) time.Duration { return p.next.Add(-pollBurst * pollEvery).Sub(now) }

// rest is how long until polls are evenly apart again. One that nobody asked for waits so long, and delays none that somebody does.
func (p pace) rest(now time.Time) time.Duration { return p.next.Sub(now) }

// polled notes a poll. One that did not wait for its turn delays the next by no more than others.
func (p *pace) polled(now time.Time) {
	ahead := min(max(p.next.Sub(now), 0), pollBurst*pollEvery)
	p.next = now.Add(ahead + pollEvery)
}
