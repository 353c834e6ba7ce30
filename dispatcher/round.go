package dispatcher

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/lines"
	"github.com/jackc/pgx/v5"
)

// round is what a claim goes through: the lines that it looks at, and what their keys' limits allow.
type round struct {
	*lockedQueue
	roster    *roster
	random    func(n int64) int64
	head      *headroom
	keys      []string // those that are not paused, in turn
	of        map[string][]*inLine
	empty     []lines.Line
	paused    map[string]time.Duration
	pausedFor time.Duration // the first of those that are
	// crowded says that there are more lines than a claim looks at. Then those that cannot be claimed
	// from make room for others: they are parked, or dropped when empty.
	crowded bool
	lastKey string
	apart   bool // a call spoiled this claim before: it is looked for (apart.go)
}

func (d *Dispatcher) round(ctx context.Context, tx pgx.Tx, q *lockedQueue, seen *survey, r *roster, now time.Time) (*round, error) {
	walked, err := lines.Walk(ctx, tx, q.Name, q.Served, r.tasks(), d.cfg.Lines)
	if err != nil {
		return nil, err
	}
	c := &round{lockedQueue: q, roster: r, random: d.cfg.Random, of: map[string][]*inLine{}, pausedFor: lookLater, crowded: len(walked) == d.cfg.Lines}
	for _, l := range walked {
		c.lastKey = l.Key
		if l.Calls == 0 {
			c.empty = append(c.empty, l)
			continue
		}
		if c.of[l.Key] == nil {
			c.keys = append(c.keys, l.Key)
		}
		c.of[l.Key] = append(c.of[l.Key], &inLine{Line: l})
	}
	if c.paused, err = seen.pausedKeys(ctx, tx, q.Name, q.Limits, c.keys); err != nil {
		return nil, err
	}
	free := c.keys[:0]
	for _, key := range c.keys {
		if wait, is := c.paused[key]; is {
			c.pausedFor = min(c.pausedFor, wait)
			continue
		}
		free = append(free, key)
	}
	c.keys = free
	c.head, err = d.headroom(ctx, tx, q.Limits, c.keys, seen.from, now)
	return c, err
}

// lockFirst locks the first calls of each key's lines, as many as its share of want and its limits allow.
func (c *round) lockFirst(ctx context.Context, tx pgx.Tx, keys []string, want int, maxData int64) error {
	if len(keys) == 0 {
		return nil
	}
	share := int64((want + len(keys) - 1) / len(keys))
	var asks []lines.Ask
	var of []*inLine
	for _, key := range keys {
		most := min(share, c.head.Most(key))
		for _, l := range c.of[key] {
			asks, of = append(asks, lines.Ask{Line: l.Line, Want: min(most, l.Calls)}), append(of, l)
		}
	}
	readFor := lines.ReadFor
	if c.apart {
		readFor = -1
	}
	calls, passed, err := lines.First(ctx, tx, c.Name, c.head.now, maxData, readFor, asks)
	if err != nil {
		return err
	}
	if c.apart {
		if err := readApart(ctx, tx, maxData, calls); err != nil {
			return err
		}
	}
	for _, call := range calls {
		of[call.Ask].calls = append(of[call.Ask].calls, call)
	}
	for _, e := range passed {
		of[e.Ask].passed = append(of[e.Ask].passed, e)
	}
	return nil
}

// hasMore says whether calls of a key are left that a pool has room for.
func (c *round) hasMore(key string) bool {
	for _, l := range c.of[key] {
		if c.roster.can(l.Task) && l.Calls > int64(l.served+len(l.passed)) {
			return true
		}
	}
	return false
}

// note writes down in the lines what became of them, and where the next claim of the queue begins: with the
// first key that a call went unread of; else after the key served last; or, where none of as many as a claim
// looks at could be served, behind them all.
func (c *round) note(writes *pgx.Batch, b *batch) {
	var left []lines.Left
	var again []int64
	for _, key := range c.keys {
		for _, l := range c.of[key] {
			to, passed := l.left()
			if to.Gone > 0 {
				left = append(left, to)
			}
			again = append(again, passed...)
		}
	}
	if c.crowded {
		for _, l := range c.empty {
			left = append(left, lines.Left{Line: l, From: l.Head})
		}
		parked := c.parked(b)
		lines.Park(writes, c.Name, c.head.now, parked)
		b.more = b.more || b.stuck == nil && len(b.chosen)+len(b.refused)+len(parked)+len(c.empty) > 0 // behind them
	}
	lines.Leave(writes, c.Name, left, c.crowded)
	lines.Return(writes, again)
	b.more = b.more || b.stuck == nil && len(again) > 0 // behind what has ended, or is locked

	after := c.Served
	switch {
	case b.unread != nil:
		if i := slices.Index(c.keys, *b.unread); i > 0 {
			after = c.keys[i-1]
		}
	case len(b.chosen) > 0:
		after = b.last
	case c.crowded:
		after = c.lastKey
	}
	if after != c.Served {
		writes.Queue(servedSQL, c.Name, after)
	}
}

const servedSQL = `UPDATE call_queues SET served_key = $2 WHERE name = $1`

// parked are the keys that can be put aside, since who frees units of theirs, or ends their pause, has
// them woken. One that still has room, though not for its next call, is looked at again in a minute: nobody
// says so when that call is cancelled, expires, or is deleted or changed, and those behind it fit.
func (c *round) parked(b *batch) []lines.Parked {
	var list []lines.Parked
	for _, key := range slices.Sorted(maps.Keys(c.paused)) {
		list = append(list, lines.Parked{Key: key, For: min(c.paused[key], lookLater)})
	}
	for _, h := range b.blocked {
		wait, known := c.head.wait(h)
		switch {
		case !known:
			wait = lookLater
		case c.head.Most(h.key) > 0:
			wait = min(wait, lookLater)
		}
		list = append(list, lines.Parked{Key: h.key, Priority: h.priority, For: wait})
	}
	return list
}
