package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// dueQueue is a queue with when its next call may be claimed.
type dueQueue struct {
	Name    string    `db:"name"`
	FirstAt time.Time `db:"first_at"`
	Due     bool      `db:"due"`
	In      float64   `db:"due_in"` // seconds; at most a tick or so matters
}

// look claims what can be claimed now, from each queue in turn, and says when to look again. A
// look that does not wait passes over queues whose limits cannot have room yet.
func (d *Dispatcher) look(ctx context.Context, wait bool) (time.Duration, error) {
	if d.hand.down() && !d.hand.back(ctx) {
		return time.Second, errors.New("claims wait for Redis")
	}
	queues, err := d.dueQueues(ctx)
	if err != nil {
		return 0, err
	}
	next := time.Minute
	d.rounds++
	var failures error
	for i := range queues {
		queue := queues[(i+d.rounds)%len(queues)]
		if !queue.Due {
			next = min(next, time.Duration(queue.In*float64(time.Second)))
			continue
		}
		if until, ok := d.blocked[queue.Name]; ok && !wait && d.cfg.Now().Before(until) {
			next = min(next, until.Sub(d.cfg.Now()))
			continue
		}
		again, err := d.drainQueue(ctx, queue.Name, wait)
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("claim from queue %q: %w", queue.Name, err))
			continue
		}
		next = min(next, again)
	}
	return next, failures
}

// drainQueue claims from one queue until its limits, the workers or its calls run out.
func (d *Dispatcher) drainQueue(ctx context.Context, queue string, wait bool) (time.Duration, error) {
	for {
		result, err := d.claim(ctx, queue, wait)
		if err != nil {
			return 0, err
		}
		delete(d.blocked, queue)
		if result.blockedFor > 0 {
			d.blocked[queue] = d.cfg.Now().Add(result.blockedFor)
		}
		if !result.more {
			return result.lookIn, nil
		}
	}
}

func (d *Dispatcher) dueQueues(ctx context.Context) ([]dueQueue, error) {
	rows, err := d.cfg.Pool.Query(ctx, dueSQL)
	if err != nil {
		return nil, fmt.Errorf("look for due calls: %w", err)
	}
	queues, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[dueQueue])
	if err != nil {
		return nil, fmt.Errorf("look for due calls: %w", err)
	}
	return queues, nil
}

// A probe of call_queue_ready_idx per queue and priority, and one of call_queue_due_idx. run_at may
// be infinite, of which nothing can be subtracted.
const dueSQL = `
SELECT name, first_at <= clock_timestamp() AS due,
    extract(epoch FROM least(greatest(first_at, clock_timestamp()), clock_timestamp() + interval '1 min') - clock_timestamp())::float8 AS due_in
FROM (
    SELECT r.name, min(f.ready_at) AS first_at
    FROM call_queues r
    CROSS JOIN LATERAL (
        SELECT u.ready_at
        FROM generate_series(0, 9) AS p (priority)
        CROSS JOIN LATERAL (
            SELECT q.ready_at
            FROM call_queue q
            WHERE coalesce(q.queue, 'default') = r.name
              AND least(greatest(coalesce(q.priority, 5), 0), 9) = p.priority
              AND q.ready_at IS NOT NULL AND coalesce(q.key, '') = ''
            ORDER BY q.ready_at, q.id
            LIMIT 1
        ) u
        UNION ALL
        (SELECT q.ready_at
         FROM call_queue q
         WHERE coalesce(q.queue, 'default') = r.name AND q.ready_at IS NOT NULL AND coalesce(q.key, '') <> ''
         ORDER BY q.ready_at
         LIMIT 1)
    ) f
    GROUP BY r.name
) first
ORDER BY name`
