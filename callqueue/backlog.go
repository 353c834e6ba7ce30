package callqueue

import (
	"context"
	"fmt"
	"time"
)

// Backlog is what waits in a queue.
type Backlog struct {
	// Waiting is how many calls wait, those that are not due yet, too.
	Waiting int64
	// Cap is how many may (max_waiting); 0: any number.
	Cap int64
	// StartsAt is about when a call that is inserted now would start: once the queue's limits have let through what waits, as fast as
	// they may. Zero: that is not known, as while the queue is paused. It knows nothing of keys, priorities and retries.
	StartsAt time.Time
}

// Backlog returns what waits in a queue. It is one statement, which reads the sums that caps keep; of a queue without one it
// adds up what its flows hold. A queue that is not configured has calls and no StartsAt.
func (c *Client) Backlog(ctx context.Context, queue string) (b Backlog, err error) {
	var most *int64
	var at *time.Time
	if err := c.pool.QueryRow(ctx, `SELECT waiting, cap, starts_at FROM public.callq_backlog(coalesce(nullif($1, ''), 'default'))`, queue).Scan(&b.Waiting, &most, &at); err != nil {
		return Backlog{}, fmt.Errorf("read the backlog of queue %q: %w", queue, err)
	}
	if most != nil {
		b.Cap = *most
	}
	if at != nil {
		b.StartsAt = *at
	}
	return b, nil
}
