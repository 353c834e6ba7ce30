package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// dueQueue is a queue with when its next call may be claimed.
type dueQueue struct {
	Name string  `db:"name"`
	Due  bool    `db:"due"`
	In   float64 `db:"due_in"` // seconds; at most a tick or so matters
}

// look claims what can be claimed now, from each queue in turn, and says when to look again. A look that
// does not wait passes over queues whose limits cannot have room yet, and leaves what takes long to the
// next.
func (d *Dispatcher) look(ctx context.Context, wait bool) (time.Duration, error) {
	for {
		next, left, err := d.lookRound(ctx, wait)
		if !left || !wait || err != nil || d.stopping.Load() {
			return next, err
		}
	}
}

// lookRound gives each queue that is due a turn; left says that one had not come to its end.
func (d *Dispatcher) lookRound(ctx context.Context, wait bool) (next time.Duration, left bool, err error) {
	if d.hand.down() && !d.hand.back(ctx) {
		return time.Second, false, errors.New("claims wait for Redis")
	}
	queues, err := d.dueQueues(ctx)
	if err != nil {
		return 0, false, err
	}
	next = lookLater
	d.rounds++
	var failures error
	for _, queue := range d.inTurn(queues) {
		if d.stopping.Load() {
			break
		}
		if !queue.Due {
			next = min(next, time.Duration(queue.In*float64(time.Second)))
			continue
		}
		if until, ok := d.blocked[queue.Name]; ok && !wait && d.cfg.Now().Add(2*minGap).Before(until) { // not by a hair: the others' turn may be first
			next = min(next, until.Sub(d.cfg.Now()))
			continue
		}
		again, more, err := d.drainQueue(ctx, queue.Name, wait)
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("claim from queue %q: %w", queue.Name, err))
			continue
		}
		next, left = min(next, again), left || more
	}
	return min(next, d.reach.again(d.cfg.Now())), left, failures
}

// inTurn puts first those that were served longest ago.
func (d *Dispatcher) inTurn(queues []dueQueue) []dueQueue {
	if len(queues) == 0 {
		return nil
	}
	first := (d.first + d.rounds) % len(queues)
	list := slices.Concat(queues[first:], queues[:first])
	slices.SortStableFunc(list, func(a, b dueQueue) int { return cmp.Compare(d.served[a.Name], d.served[b.Name]) })
	return list
}

const drainFor = 250 * time.Millisecond

// drainQueue claims from one queue until its limits, the workers or its calls run out, or others have waited
// for long enough: then there is more.
func (d *Dispatcher) drainQueue(ctx context.Context, queue string, wait bool) (next time.Duration, more bool, err error) {
	next, began := lookLater, d.cfg.Now()
	for {
		result, err := d.claim(ctx, queue, wait)
		if err != nil {
			return 0, false, err
		}
		delete(d.blocked, queue)
		if result.blockedFor > 0 {
			d.blocked[queue] = d.cfg.Now().Add(result.blockedFor)
		}
		if !result.more || d.stopping.Load() {
			return min(next, result.lookIn), false, nil
		}
		next = minGap // what falls due after what was claimed, the next look will know
		if d.cfg.Now().Sub(began) >= drainFor {
			return next, true, nil
		}
	}
}

func (d *Dispatcher) dueQueues(ctx context.Context) ([]dueQueue, error) {
	queues, since := d.reach.begin(d.cfg.Now())
	rows, err := d.cfg.Pool.Query(ctx, dueSQL, queues, since)
	if err != nil {
		return nil, fmt.Errorf("look for due calls: %w", err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowToStructByName[dueQueue])
	if err != nil {
		return nil, fmt.Errorf("look for due calls: %w", err)
	}
	d.reach.end(d.cfg.Now())
	return due, nil
}

// Three probes per queue: news, lines to wake, lines to claim from. run_at may be infinite, of which
// nothing can be subtracted.
const dueSQL = `
SELECT name, first_at <= clock_timestamp() AS due,
    extract(epoch FROM least(greatest(first_at, clock_timestamp()), clock_timestamp() + interval '1 min') - clock_timestamp())::float8 AS due_in
FROM (
    SELECT r.name, least(n.at, w.at, a.at) AS first_at
    FROM call_queues r
    LEFT JOIN unnest($1::text[], $2::timestamptz[]) AS s (queue, since) ON s.queue = r.name
    LEFT JOIN LATERAL (
        SELECT at FROM call_news
        WHERE queue = r.name AND at >= coalesce(s.since, '-infinity')
        ORDER BY at LIMIT 1
    ) n ON true
    LEFT JOIN LATERAL (
        SELECT wake_at AS at FROM call_lines
        WHERE queue = r.name AND wake_at IS NOT NULL AND wake_at >= coalesce(s.since, '-infinity')
        ORDER BY wake_at LIMIT 1
    ) w ON true
    LEFT JOIN LATERAL (
        SELECT timestamptz '-infinity' AS at FROM call_lines
        WHERE queue = r.name AND wake_at IS NULL AND calls > 0
        LIMIT 1
    ) a ON true
) first
WHERE first_at IS NOT NULL
ORDER BY name`
