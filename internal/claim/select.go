package claim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/pools"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/usage"
	"github.com/jackc/pgx/v5"
)

// candidates are what a claim chooses from: the first flows of its queue, and what the limits of their keys allow.
type candidates struct {
	*underLocks
	then    func() knownFlows // what is known of the flows once the claim is committed
	keys    []string          // not paused, in the order of their turns
	of      map[string][]*flow
	empty   []backlog.Flow
	paused  map[string]time.Duration
	crowded bool              // there are more flows: those that cannot be claimed from make room for them
	lastKey string            // of the flows
	opened  []usage.Of        // whose probes had answers
	lanes   map[lane]*lane    // by shared and key
	named   map[int16]*string // see shareNames
}

// candidates reads the first flows of the queue, and counts what the limits allow.
func (c *Claimer) candidates(ctx context.Context, conn *schema.Conn, seen *underLocks, needs []need) (list *candidates, err error) {
	list = &candidates{underLocks: seen, of: map[string][]*flow{}, lanes: map[lane]*lane{}, named: map[int16]*string{}}
	list.then = func() knownFlows { return seen.flows }
	began, tasks := c.Now(), seen.pools.Tasks()
	first, known := seen.flows.first(tasks, seen.queue.Served, began)
	if !known {
		first, err = backlog.Walk(ctx, conn, seen.queue.Name, seen.queue.Served, tasks, c.Flows)
		if err != nil {
			return nil, err
		}
		list.crowded = len(first) == c.Flows
		seen.flows = readFlows(first, list.crowded || seen.pools.SomeFull(), tasks, seen.queue.Served, began, c.Now())
	}
	for _, l := range first {
		list.lastKey = l.Key
		if l.Calls == 0 {
			list.empty = append(list.empty, l)
			continue
		}
		if list.of[l.Key] == nil {
			list.keys = append(list.keys, l.Key)
		}
		list.of[l.Key] = append(list.of[l.Key], &flow{Flow: l})
	}
	if list.paused, err = seen.pausedKeys(ctx, conn, list.keys); err != nil {
		return nil, err
	}
	list.keys = slices.DeleteFunc(list.keys, func(key string) bool { _, is := list.paused[key]; return is })
	if seen.head == nil {
		var counts pgx.Batch
		seen.head = c.headroom(&counts, seen, list.keys)
		if err := conn.SendBatch(ctx, &counts).Close(); err != nil {
			return nil, fmt.Errorf("count occupied units: %w", err)
		}
	}
	if err = seen.lower(ctx, conn, list.head); err != nil {
		return nil, err
	}
	if err = list.head.counted(ctx, conn); err != nil {
		return nil, err
	}
	c.shares.leave(list, c.blocked)
	if seen.pools.InRuns() > 0 {
		list.head.mayRun(c.runs, c.Now(), seen.queue.Batch-c.claims)
	} else {
		list.head.EndRuns()
	}
	doors, err := seen.doors(ctx, conn)
	if err != nil {
		return nil, err
	}
	list.opened = list.head.knock(doors, list.keys)
	c.shares.divide(list)
	c.needs.bind(list, needs)
	return list, nil
}

// lockFirst locks the first calls of each key's flows, as many as its share of want and its limits allow.
func (c *candidates) lockFirst(ctx context.Context, conn *schema.Conn, keys []string, want int) error {
	var asks []backlog.Ask
	var of []*flow
	for _, key := range keys {
		share := min(int64((want+len(keys)-1)/len(keys)), c.head.Most(key))
		for _, l := range c.of[key] {
			asks, of = append(asks, backlog.Ask{Flow: l.Flow, Want: min(share, l.Calls)}), append(of, l)
		}
	}
	if len(asks) == 0 {
		return nil
	}
	calls, err := backlog.First(ctx, conn, c.queue.Name, c.retriesApart(), c.now, asks)
	if err != nil {
		return err
	}
	for _, call := range calls {
		of[call.Ask].calls = append(of[call.Ask].calls, call)
	}
	return nil
}

// retriesApart reports whether calls in error have flows of their own.
func (c *candidates) retriesApart() bool {
	return slices.ContainsFunc(c.queue.Limits, func(l policy.LockedLimit) bool { _, is := l.Shares[limit.Retries]; return is })
}

// note writes how far the flows were consumed, and where the queue's next claim begins.
func (c *candidates) note(b *batch) {
	var left []backlog.Flow
	var again []int64
	for _, key := range c.keys {
		for _, l := range c.of[key] {
			if passed := l.advance(); l.passed > 0 {
				left, again = append(left, l.Flow), append(again, passed...)
			}
		}
	}
	parked := c.parked(b)
	behind := len(again)+len(b.aside) > 0 // what has ended, is locked or set aside, there are others
	if c.crowded {
		left = append(left, c.empty...)
		behind = behind || len(b.chosen)+len(b.refused)+len(parked)+len(c.empty) > 0
	}
	b.more = b.more || b.stuck == nil && behind
	backlog.Park(&b.writes, c.queue.Name, c.now, parked)
	consumed := backlog.Consume(&b.writes, c.queue.Name, left, c.crowded)
	backlog.Requeue(&b.writes, c.retriesApart(), again, requeueAfter)
	backlog.Requeue(&b.writes, c.retriesApart(), b.aside, asideFor)
	served := c.queue.Served
	switch {
	case len(b.chosen) > 0:
		served = b.chosen[len(b.chosen)-1].Key
	case c.crowded:
		served = c.lastKey
	}
	if served != c.queue.Served && c.flows.noteServed(c.now) {
		b.writes.Queue(servedSQL, c.queue.Name, served)
	}
	c.then = func() knownFlows { return c.flows.consumed(len(left), *consumed, len(parked), served) }
}

// The queue's next claim begins behind that key, unless its dispatcher knows of a later one.
const servedSQL = `UPDATE callq.call_queues SET served_key = $2 WHERE name = $1`

// parked returns the keys that are left alone: what ends their pause, or frees their units, wakes them. Nothing does if a call
// too large for its key's room goes, or is changed: such a key is tried again in a minute.
func (c *candidates) parked(b *batch) []backlog.Parked {
	var list []backlog.Parked
	for _, key := range slices.Sorted(maps.Keys(c.paused)) {
		list = append(list, backlog.Parked{Key: key, For: min(c.paused[key], pollLater)})
	}
	if !c.crowded {
		return list
	}
	for _, h := range b.blocked {
		wait, known := c.head.wait(h)
		if !known || c.head.Most(h.key) > 0 && wait > pollLater {
			wait = pollLater
		}
		list = append(list, backlog.Parked{Key: h.key, Priority: h.priority, For: wait})
	}
	return list
}

// flow is a flow with its first calls.
type flow struct {
	backlog.Flow
	calls  []backlog.Call
	passed int // of calls: chosen, refused, or they do not wait
}

// candidate is a call that a claim may take.
type candidate struct {
	backlog.Call
	Key, Task string
	Priority  int16
	to        *pools.Pool // of a chosen one: where it goes
	at        time.Time   // likewise, when it may be made; zero: at once
	lane      *lane       // likewise; nil: it waits for no other
}

// held is a call that waits for units.
type held struct {
	key      string
	cost     int64
	priority int16
}

// choose takes one call of each key in turn, until want calls are chosen, a limit shared by all keys has no room, or no key's
// next call can be claimed.
// Of limits that have shares, each share has its part first; then what is left goes to those that have more calls.
func (c *candidates) choose(b *batch, keys []string, want int, now time.Time, random func(n int64) int64) {
	for c.pick(b, keys, want, now, random); b.stuck == nil && len(b.chosen) < want && c.head.lend(b); {
		c.pick(b, keys, want, now, random)
	}
}

func (c *candidates) pick(b *batch, keys []string, want int, now time.Time, random func(n int64) int64) {
	for waiting := keys; len(waiting) > 0; {
		var next []string
		for _, key := range waiting {
			if len(b.chosen) == want {
				return
			}
			f := c.nextFlow(b, key)
			if f == nil {
				continue
			}
			call := f.candidate()
			call.lane = c.laneOf(key)
			beyond := c.head.Lacks(key, call.Cost)
			if fits, _ := c.head.Fits(key, call.Cost); fits && !call.lane.takes(f.Task, beyond) {
				if call.lane != nil && call.lane.shared {
					return
				}
				continue
			}
			switch at, admitted, shared := c.head.Admit(key, call.Cost); {
			case shared:
				b.stuck = &held{key, call.Cost, f.Priority}
				return
			case !admitted:
				b.blocked = append(b.blocked, held{key, call.Cost, f.Priority})
			default:
				c.tookPart(f, now)
				f.passed++
				call.to, call.at = call.lane.send(c.pools, f.Task, beyond, random), at
				b.chosen, next = append(b.chosen, call), append(next, key)
			}
		}
		waiting = next
	}
}

// nextFlow returns the flow whose first call is the key's next, among the flows that a pool has capacity for. It refuses calls that
// can never be made.
func (c *candidates) nextFlow(b *batch, key string) *flow {
	var best *flow
	for _, f := range c.of[key] {
		for ; f.passed < len(f.calls); f.passed++ {
			if !f.first().Waits {
				continue
			}
			call := f.candidate()
			if i, exceeds := c.head.Exceeds(key, call.Cost); exceeds && call.Refusal == nil {
				l := c.head.limits[i]
				call.Refusal = new(fmt.Sprintf("cost %d is over limit %s, which allows %s", call.Cost, l.Name, l.Rate()))
			}
			if call.Refusal == nil && c.head.overOverride(key, call.Cost) {
				b.aside = append(b.aside, call.ID)
				continue
			}
			if call.Refusal == nil {
				break
			}
			b.refused = append(b.refused, call)
		}
		if f.passed < len(f.calls) && c.canTake(key, f.Task) && c.hasPart(f) && (best == nil || f.before(best)) {
			best = f
		}
	}
	return best
}

// canTake reports whether a pool has capacity for a key's call, or has its lane.
func (c *candidates) canTake(key, task string) bool {
	if c.pools.CanTake(task) {
		return true
	}
	l := c.laneOf(key)
	return l != nil && l.to != nil && l.task == task
}

func (l *flow) first() *backlog.Call { return &l.calls[l.passed] }

func (l *flow) candidate() candidate {
	return candidate{Call: *l.first(), Key: l.Key, Task: l.Task, Priority: l.Priority}
}

// before reports whether the first call of l comes before that of other.
func (l *flow) before(other *flow) bool {
	a, b := l.first(), other.first()
	return cmp.Or(cmp.Compare(l.Rank(), other.Rank()), a.ReadyAt.Compare(b.ReadyAt), cmp.Compare(a.ID, b.ID)) < 0
}

// advance moves the flow behind the calls that were passed, and those next to them that do not wait either. It returns the ids of
// those that did not wait.
func (l *flow) advance() (again []int64) {
	for l.passed < len(l.calls) && !l.first().Waits {
		l.passed++
	}
	for _, call := range l.calls[:l.passed] {
		l.Head, l.Consumed = call.Seq, call.Place
		if !call.Waits {
			again = append(again, call.ID)
		}
	}
	l.Calls = max(0, l.Calls-int64(l.passed)) // by hand, it may have been set too low
	return again
}
