package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Poll gives each queue that is due a turn, and returns in how long to poll again. Without wait, it skips queues whose limits cannot
// have room yet, leaves what takes long to the next poll, and all to another dispatcher that claims. With wait, it ends when nothing
// more can be claimed.
func (c *Claimer) Poll(ctx context.Context, wait bool) (time.Duration, error) {
	if !wait {
		if left, err := c.standsBy(ctx); left > 0 || err != nil {
			return left, err
		}
	}
	for {
		if !c.Sender.Reachable(ctx) {
			return errRetry, errors.New("claims wait for Redis")
		}
		queues, others, err := c.dueQueues(ctx)
		if err != nil {
			return errRetry, err
		}
		if others && !wait {
			c.standBy = c.Now().Add(standFor)
			return standFor, nil
		}
		c.shares.poll(queues)
		pollIn, more := pollLater, others
		c.hurried = false
		for _, queue := range c.inTurn(queues) {
			o, claimErr := c.turn(ctx, queue, wait)
			err = errors.Join(err, claimErr)
			pollIn, more, c.hurried = min(pollIn, o.pollIn), more || o.more, c.hurried || o.hurried || o.more
		}
		if c.shares.someFreed() {
			c.Freed()
			pollIn, more = min(pollIn, MinGap), true
		}
		switch {
		case err != nil:
			return errRetry, err
		case !more || !wait || c.Stop():
			return min(pollIn, c.scan.again(c.Now())), nil
		}
	}
}

// LeavesTick returns for how long a tick is left to another dispatcher that claims: all but one in a while, by which this one learns
// the low-water mark.
func (c *Claimer) LeavesTick(ctx context.Context) (time.Duration, error) {
	if c.Now().Sub(c.claimed) >= standMost {
		return 0, nil
	}
	return c.standsBy(ctx)
}

// standsBy returns for how long claims are left to another dispatcher. That it went on to claim is enough to know: it looks at all
// that there is.
func (c *Claimer) standsBy(ctx context.Context) (time.Duration, error) {
	if left := c.StandBy(); left > 0 || c.standBy.IsZero() {
		return max(left, 0), nil
	}
	var drawn int64
	if err := c.DB.QueryRow(ctx, drawnSQL).Scan(&drawn); err != nil {
		return errRetry, fmt.Errorf("look whether others claim: %w", err)
	}
	c.standBy = time.Time{}
	if !c.othersDrew(drawn) {
		return 0, nil
	}
	c.standBy = c.Now().Add(standFor)
	return standFor, nil
}

// othersDrew takes the number of the last claim, and reports whether another dispatcher has claimed since this one last saw it. Then
// nothing is known of the flows any more.
func (c *Claimer) othersDrew(last int64) bool {
	others := c.seen > 0 && last > c.seen
	if others {
		clear(c.known)
	}
	c.seen = last
	return others
}

const drawnSQL = `SELECT coalesce(pg_sequence_last_value('callq.call_batch_seq'), 0)`

// inTurn orders the queues for a round, so that those that share a limit take turns: first those that were served longest ago,
// and of these any, so that a dispatcher that runs once does not always favor the same one.
func (c *Claimer) inTurn(queues []dueQueue) []dueQueue {
	c.rounds++
	if len(queues) == 0 {
		return nil
	}
	first := c.Random(int64(len(queues)))
	list := slices.Concat(queues[first:], queues[:first])
	slices.SortStableFunc(list, func(a, b dueQueue) int { return cmp.Compare(c.served[a.Name], c.served[b.Name]) })
	return list
}

const turnFor = 250 * time.Millisecond

// turn claims from a queue that is due and may have room, until its limits, the workers or its calls run out, or other queues
// have waited long enough: then there is more.
func (c *Claimer) turn(ctx context.Context, queue dueQueue, wait bool) (o outcome, err error) {
	began := c.Now()
	switch blockedFor := c.blocked[queue.Name].Sub(began); {
	case c.Stop():
		return outcomeOf(none, state{}), nil
	case !queue.Due:
		return outcomeOf(notDue, state{wait: queue.In}), nil
	case !wait && blockedFor > 2*MinGap: // not by a hair: the others' turn may be first
		return outcomeOf(blocked, state{wait: blockedFor}), nil
	}
	for claims := 1; ; claims++ {
		needs, lacks, err := c.needs.peek(ctx, queue, c.Flows, c.Now())
		if err == nil && lacks > 0 {
			c.shares.note(nil, queue.Name, 0)
			o = outcomeOf(short, state{wait: lacks})
		} else if err == nil {
			o, err = c.claim(ctx, order{queue: queue.Name, needs: needs, wait: wait})
		}
		if err != nil {
			return o, fmt.Errorf("claim from queue %q: %w", queue.Name, err)
		}
		now := c.Now()
		c.blocked[queue.Name] = now.Add(o.blockedFor)
		if claims > 1 { // the next poll will know of what falls due behind what was claimed
			o.pollIn = min(o.pollIn, MinGap)
		}
		switch {
		case c.Stop():
			o.more = false
			return o, nil
		case !o.more:
			return o, nil
		case now.Sub(began) >= turnFor:
			o.pollIn = MinGap
			return o, nil
		}
	}
}

// dueQueue is a queue with when its next call may be claimed.
type dueQueue struct {
	Name string        `db:"name"`
	Due  bool          `db:"due"`
	In   time.Duration `db:"due_in"`
	// Needs are units of budgets that each call draws.
	Needs map[string]int64 `db:"needs"`
	// InboxAt and FlowAt are when its first inbox row and its first parked flow fall due.
	InboxAt *time.Time `db:"inbox_at"`
	FlowAt  *time.Time `db:"flow_at"`
	// Drawn is the number of the last claim, of whatever dispatcher.
	Drawn int64 `db:"drawn"`
}

// dueQueues reports also whether another dispatcher has claimed, after this one, since this one polled last. Then this one stands
// by: of two that both claim whenever a unit comes free, one claims for nothing. If the other dies, this one polls soon enough.
func (c *Claimer) dueQueues(ctx context.Context) (due []dueQueue, others bool, err error) {
	began := c.Now()
	queues, since, active := c.dueArgs(began)
	rows, _ := c.DB.Query(ctx, dueSQL, queues, since, active)
	due, err = pgx.CollectRows(rows, pgx.RowToStructByName[dueQueue])
	if err != nil {
		return nil, false, fmt.Errorf("look for due calls: %w", err)
	}
	c.scan.end(began, c.Now(), due)
	if len(due) > 0 {
		others = c.othersDrew(due[0].Drawn)
	}
	return due, others, nil
}

// dueArgs are the arguments of dueSQL: queues, from when on to read their rows, and whether they have calls in flows that are not parked.
// Nil: everything; not known.
func (c *Claimer) dueArgs(now time.Time) (queues []string, since []*time.Time, active []*bool) {
	from := c.scan.begin(now)
	for queue, at := range from {
		queues, since, active = append(queues, queue), append(since, &at), append(active, c.known.active(queue, now))
	}
	for queue := range c.known {
		if _, is := from[queue]; !is {
			queues, since, active = append(queues, queue), append(since, nil), append(active, c.known.active(queue, now))
		}
	}
	return queues, since, active
}

// Three probes per queue: inbox rows, flows to wake, flows to claim from. run_at may be infinite, of which nothing can be
// subtracted, and which Go cannot read.
const dueSQL = `
SELECT name, first_at <= clock_timestamp() AS due,
    least(greatest(first_at, clock_timestamp()), clock_timestamp() + interval '1 min') - clock_timestamp() AS due_in, needs,
    least(greatest(inbox_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z') AS inbox_at,
    least(greatest(flow_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z') AS flow_at,
    (` + drawnSQL + `) AS drawn
FROM (
    SELECT r.name, nullif(r.needs, '{}') AS needs, n.at AS inbox_at, w.at AS flow_at,
        least(n.at, w.at, a.at, CASE WHEN s.active THEN timestamptz '-infinity' END) AS first_at
    FROM callq.call_queues r
    LEFT JOIN unnest($1::text[], $2::timestamptz[], $3::bool[]) AS s (queue, since, active) ON s.queue = r.name
    LEFT JOIN LATERAL (
        SELECT at FROM callq.call_inbox
        WHERE queue = r.name AND at >= coalesce(s.since, '-infinity')
        ORDER BY at LIMIT 1
    ) n ON true
    LEFT JOIN LATERAL (
        SELECT wake_at AS at FROM callq.call_flows
        WHERE queue = r.name AND wake_at IS NOT NULL AND wake_at >= coalesce(s.since, '-infinity')
        ORDER BY wake_at LIMIT 1
    ) w ON true
    LEFT JOIN LATERAL (
        SELECT timestamptz '-infinity' AS at FROM callq.call_flows
        WHERE s.active IS NULL AND queue = r.name AND wake_at IS NULL AND calls > 0
        LIMIT 1
    ) a ON true
) first
WHERE first_at IS NOT NULL
ORDER BY name`
