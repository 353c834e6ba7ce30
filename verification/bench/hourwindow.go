package main

import (
	"sync"
	"time"
)

// windowCounter knows the most requests that came in any window. It keeps those of the last only.
type windowCounter struct {
	window time.Duration

	mu   sync.Mutex  // guards what follows
	last []time.Time // in order
	peak int
}

// arrived counts a request that comes now. The clock is read under the lock: so they come in order.
func (c *windowCounter) arrived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at(time.Now())
}

func (c *windowCounter) at(now time.Time) {
	gone := 0
	for gone < len(c.last) && now.Sub(c.last[gone]) >= c.window {
		gone++
	}
	c.last = append(c.last[gone:], now)
	c.peak = max(c.peak, len(c.last))
}

func (c *windowCounter) most() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peak
}
