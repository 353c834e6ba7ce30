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

// poll claims what can be claimed now, from each queue in turn, and says when to poll again. Without wait, it skips queues whose
// limits cannot have room yet, and leaves what takes long to the next poll.
func (c *claimer) poll(ctx context.Context, wait bool) (time.Duration, error) {
	for {
		result, err := c.pollRound(ctx, wait)
		if !result.more || !wait || err != nil || c.stop() {
			return result.pollIn, err
		}
	}
}

// pollRound gives each queue that is due a turn. There is more if one had not come to its end.
func (c *claimer) pollRound(ctx context.Context, wait bool) (outcome, error) {
	if c.sender.Away() && !c.sender.Back(ctx) {
		return outcome{pollIn: time.Second}, errors.New("claims wait for Redis")
	}
	queues, err := c.dueQueues(ctx)
	if err != nil {
		return outcome{}, err
	}
	round := outcome{pollIn: pollLater}
	var failures error
	for _, queue := range c.order.next(queues) {
		if c.stop() {
			break
		}
		blockedFor := c.blocked[queue.Name].Sub(c.cfg.Now())
		switch {
		case !queue.Due:
			round.pollIn = min(round.pollIn, time.Duration(queue.In*float64(time.Second)))
			continue
		case !wait && blockedFor > 2*minGap: // not by a hair: the others' turn may be first
			round.pollIn = min(round.pollIn, blockedFor)
			continue
		}
		result, err := c.drainQueue(ctx, queue.Name, wait)
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("claim from queue %q: %w", queue.Name, err))
			continue
		}
		round.pollIn, round.more = min(round.pollIn, result.pollIn), round.more || result.more
	}
	round.pollIn = min(round.pollIn, c.scan.again(c.cfg.Now()))
	return round, failures
}

// order turns the order of the queues from poll to poll, so that those that share a limit take turns.
type order struct {
	first  int            // where it begins: anywhere, so that a dispatcher that runs once does not always favor the same queue
	rounds int            // of polls
	served map[string]int // queue to the round in which calls of it were last claimed
}

// next begins a round. The queues that were served longest ago come first.
func (o *order) next(queues []dueQueue) []dueQueue {
	o.rounds++
	if len(queues) == 0 {
		return nil
	}
	first := (o.first + o.rounds) % len(queues)
	list := slices.Concat(queues[first:], queues[:first])
	slices.SortStableFunc(list, func(a, b dueQueue) int { return cmp.Compare(o.served[a.Name], o.served[b.Name]) })
	return list
}

func (o *order) note(queue string) { o.served[queue] = o.rounds }

const drainFor = 250 * time.Millisecond

// drainQueue claims from one queue until its limits, the workers or its calls run out, or other queues have waited long
// enough: then there is more.
func (c *claimer) drainQueue(ctx context.Context, queue string, wait bool) (outcome, error) {
	began := c.cfg.Now()
	for pollIn := pollLater; ; pollIn = minGap { // what falls due after what was claimed, the next poll will know
		result, err := c.claim(ctx, queue, wait)
		if err != nil {
			return outcome{}, err
		}
		now := c.cfg.Now()
		c.blocked[queue] = now.Add(result.blockedFor)
		if !result.more || c.stop() {
			return outcome{pollIn: min(pollIn, result.pollIn)}, nil
		}
		if now.Sub(began) >= drainFor {
			return outcome{pollIn: minGap, more: true}, nil
		}
	}
}

// dueQueue is a queue with when its next call may be claimed.
type dueQueue struct {
	Name string  `db:"name"`
	Due  bool    `db:"due"`
	In   float64 `db:"due_in"` // seconds; at most a tick or so matters
}

func (c *claimer) dueQueues(ctx context.Context) ([]dueQueue, error) {
	queues, since := c.scan.begin(c.cfg.Now())
	rows, _ := c.cfg.Pool.Query(ctx, dueSQL, queues, since)
	due, err := pgx.CollectRows(rows, pgx.RowToStructByName[dueQueue])
	if err != nil {
		return nil, fmt.Errorf("look for due calls: %w", err)
	}
	c.scan.end(c.cfg.Now())
	return due, nil
}

// Three probes per queue: inbox rows, flows to wake, flows to claim from. run_at may be infinite, of which
// nothing can be subtracted.
const dueSQL = `
SELECT name, first_at <= clock_timestamp() AS due,
    extract(epoch FROM least(greatest(first_at, clock_timestamp()), clock_timestamp() + interval '1 min') - clock_timestamp())::float8 AS due_in
FROM (
    SELECT r.name, least(n.at, w.at, a.at) AS first_at
    FROM call_queues r
    LEFT JOIN unnest($1::text[], $2::timestamptz[]) AS s (queue, since) ON s.queue = r.name
    LEFT JOIN LATERAL (
        SELECT at FROM call_inbox
        WHERE queue = r.name AND at >= coalesce(s.since, '-infinity')
        ORDER BY at LIMIT 1
    ) n ON true
    LEFT JOIN LATERAL (
        SELECT wake_at AS at FROM call_flows
        WHERE queue = r.name AND wake_at IS NOT NULL AND wake_at >= coalesce(s.since, '-infinity')
        ORDER BY wake_at LIMIT 1
    ) w ON true
    LEFT JOIN LATERAL (
        SELECT timestamptz '-infinity' AS at FROM call_flows
        WHERE queue = r.name AND wake_at IS NULL AND calls > 0
        LIMIT 1
    ) a ON true
) first
WHERE first_at IS NOT NULL
ORDER BY name`
