package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/pools"
	"github.com/jackc/pgx/v5"
)

// candidates are what a claim chooses from: the first flows of its queue, and what the limits of their keys allow.
type candidates struct {
	*snapshot
	random      func(n int64) int64
	head        *headroom
	keys        []string // not paused, in the order of their turns
	of          map[string][]*flow
	empty       []backlog.Flow
	paused      map[string]time.Duration
	unpausedFor time.Duration // until the first pause ends
	// crowded means that there are more flows than a claim looks at. Flows that cannot be claimed from then make room
	// for others: they are parked, or dropped if they are empty.
	crowded bool
	lastKey string
	isolate bool // a call spoiled the claim before this one: find it (isolate.go)
}

// candidates reads the first flows of the queue, and counts what the limits allow.
func (c *claimer) candidates(ctx context.Context, tx pgx.Tx, seen *snapshot) (*candidates, error) {
	walked, err := backlog.Walk(ctx, tx, seen.queue.Name, seen.queue.Served, seen.pools.Tasks(), c.cfg.Flows)
	if err != nil {
		return nil, err
	}
	list := &candidates{
		snapshot: seen, random: c.cfg.Random, of: map[string][]*flow{},
		unpausedFor: pollLater, crowded: len(walked) == c.cfg.Flows,
	}
	for _, l := range walked {
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
	if list.paused, err = seen.pausedKeys(ctx, tx, list.keys); err != nil {
		return nil, err
	}
	for _, wait := range list.paused {
		list.unpausedFor = min(list.unpausedFor, wait)
	}
	list.keys = slices.DeleteFunc(list.keys, func(key string) bool { _, is := list.paused[key]; return is })
	list.head, err = c.headroom(ctx, tx, seen, list.keys)
	return list, err
}

// lockFirst locks the first calls of each key's flows, as many as its share of want and its limits allow.
func (c *candidates) lockFirst(ctx context.Context, tx pgx.Tx, keys []string, want int, maxData int64) error {
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
	readFor := backlog.ReadFor
	if c.isolate {
		readFor = -1
	}
	calls, skipped, err := backlog.First(ctx, tx, c.queue.Name, c.now, maxData, readFor, asks)
	if err == nil && c.isolate {
		err = readEach(ctx, tx, maxData, calls)
	}
	if err != nil {
		return err
	}
	for _, call := range calls {
		of[call.Ask].calls = append(of[call.Ask].calls, call)
	}
	for _, e := range skipped {
		of[e.Ask].skipped = append(of[e.Ask].skipped, e)
	}
	return nil
}

// note writes how far the flows were consumed, and where the queue's next claim begins.
func (c *candidates) note(writes *pgx.Batch, b *batch) {
	var left []backlog.Advance
	var again []int64
	for _, key := range c.keys {
		for _, l := range c.of[key] {
			to, skipped := l.advance()
			if to.Removed > 0 {
				left = append(left, to)
			}
			again = append(again, skipped...)
		}
	}
	behind := len(again) > 0 // what has ended, or is locked, there are others
	if c.crowded {
		for _, l := range c.empty {
			left = append(left, backlog.Advance{Flow: l, From: l.Head})
		}
		parked := c.parked(b)
		backlog.Park(writes, c.queue.Name, c.now, parked)
		behind = behind || len(b.chosen)+len(b.refused)+len(parked)+len(c.empty) > 0
	}
	b.more = b.more || b.stuck == nil && behind
	backlog.Consume(writes, c.queue.Name, left, c.crowded)
	backlog.Requeue(writes, again)
	if next := c.servedKey(b); next != c.queue.Served {
		writes.Queue(servedSQL, c.queue.Name, next)
	}
}

// servedKey is the key after which the queue's next claim begins: before the first key whose next call was not read; else the
// key that was served last; else, if there are more flows than a claim looks at, the last of these.
func (c *candidates) servedKey(b *batch) string {
	switch {
	case b.unread != nil:
		if i := slices.Index(c.keys, *b.unread); i > 0 {
			return c.keys[i-1]
		}
	case len(b.chosen) > 0:
		return b.chosen[len(b.chosen)-1].Key
	case c.crowded:
		return c.lastKey
	}
	return c.queue.Served
}

const servedSQL = `UPDATE call_queues SET served_key = $2 WHERE name = $1`

// parked returns the keys that can be left alone: whoever frees their units, or ends their pause, wakes them. A key that has
// room, but not for its next call, is looked at again in a minute: nobody is notified if that call goes, or is changed, so that
// those behind it fit.
func (c *candidates) parked(b *batch) []backlog.Parked {
	var list []backlog.Parked
	for _, key := range slices.Sorted(maps.Keys(c.paused)) {
		list = append(list, backlog.Parked{Key: key, For: min(c.paused[key], pollLater)})
	}
	for _, h := range b.blocked {
		wait, known := c.head.wait(h)
		switch {
		case !known:
			wait = pollLater
		case c.head.Most(h.key) > 0:
			wait = min(wait, pollLater)
		}
		list = append(list, backlog.Parked{Key: h.key, Priority: h.priority, For: wait})
	}
	return list
}

// flow is a flow with its first calls, locked.
type flow struct {
	backlog.Flow
	calls   []backlog.Call
	skipped []backlog.Entry // among them, which cannot be claimed
	served  int             // of calls: chosen or refused
}

// candidate is a call that a claim may take.
type candidate struct {
	backlog.Call
	Key, Task string
	Priority  int16
	to        *pools.Pool // of a chosen one: where it goes
}

// selection is what a claim chose.
type selection struct {
	chosen  []candidate
	refused []candidate // can never be made as they are
	// stuck is the call that a limit shared by all keys has no room for. Small calls do not overtake a large one, or it would
	// wait for ever: the line behind it is blocked.
	stuck   *held
	blocked []held // the next calls of keys whose own limits have no room for them
	hasRead bool
	unread  *string // the first key that stopped at an unread call: the next claim begins with it
}

// held is a call that waits for units.
type held struct {
	key      string
	cost     int64
	priority int16
}

// choose takes one call of each key in turn, until want calls are chosen, a limit shared by all keys has no room, or no key's
// next call can be taken. It reads the first unread call it comes to, however long that takes; a key stops at any other.
func (c *candidates) choose(s *selection, keys []string, want int, read func(*backlog.Call) error) error {
	for waiting := keys; len(waiting) > 0; {
		var next []string
		for _, key := range waiting {
			if len(s.chosen) == want {
				return nil
			}
			f, err := c.next(s, key, read)
			if err != nil {
				return err
			}
			if f == nil {
				continue
			}
			call := f.candidate()
			admitted, shared := c.head.Admit(key, call.Cost)
			switch {
			case shared:
				s.stuck = &held{key, call.Cost, f.Priority}
				return nil
			case !admitted:
				s.blocked = append(s.blocked, held{key, call.Cost, f.Priority})
				continue
			}
			f.served++
			call.to = c.pools.Choose(f.Task, c.random)
			s.chosen = append(s.chosen, call)
			next = append(next, key)
		}
		waiting = next
	}
	return nil
}

// next returns the flow whose first call is the key's next. That call was read, or has to wait for units anyway.
func (c *candidates) next(s *selection, key string, read func(*backlog.Call) error) (*flow, error) {
	for {
		f := c.nextOf(s, key)
		if f == nil || !f.first().Unread {
			return f, nil
		}
		if fits, _ := c.head.Fits(key, f.first().Cost); !fits {
			return f, nil
		}
		if s.hasRead {
			s.unread = cmp.Or(s.unread, &key)
			return nil, nil
		}
		s.hasRead = true
		if err := read(f.first()); err != nil {
			return nil, err
		}
	}
}

// nextOf returns the flow whose first call is the key's next, among the flows that a pool has capacity for. It refuses calls that
// can never be made.
func (c *candidates) nextOf(s *selection, key string) *flow {
	var best *flow
	for _, f := range c.of[key] {
		for ; f.served < len(f.calls); f.served++ {
			call := f.candidate()
			if i, exceeds := c.head.Exceeds(key, call.Cost); exceeds && call.Refusal == nil {
				l := c.head.limits[i]
				call.Refusal = new(fmt.Sprintf("cost %d is over limit %s, which allows %s", call.Cost, l.Name, l.Rate()))
			}
			if call.Refusal == nil {
				break
			}
			s.refused = append(s.refused, call)
		}
		if f.served < len(f.calls) && c.pools.CanTake(f.Task) && (best == nil || f.before(best)) {
			best = f
		}
	}
	return best
}

func (l *flow) first() *backlog.Call { return &l.calls[l.served] }

func (l *flow) candidate() candidate {
	return candidate{Call: *l.first(), Key: l.Key, Task: l.Task, Priority: l.Priority}
}

// before reports whether the first call of l comes before that of other.
func (l *flow) before(other *flow) bool {
	a, b := l.first(), other.first()
	return cmp.Or(cmp.Compare(l.Priority, other.Priority), a.ReadyAt.Compare(b.ReadyAt), cmp.Compare(a.ID, b.ID)) < 0
}

// advance returns where the flow stands after the calls that were served. It skips entries on the way that cannot be claimed, and
// returns their ids.
func (l *flow) advance() (to backlog.Advance, skipped []int64) {
	to = backlog.Advance{Flow: l.Flow, From: l.Head, Removed: int64(l.served)}
	if l.served > 0 {
		to.Head, to.Consumed = l.calls[l.served-1].Seq, l.calls[l.served-1].Place
	}
	for _, e := range l.skipped {
		if l.served < len(l.calls) && !comesBefore(e, l.calls[l.served].Entry) {
			break
		}
		skipped = append(skipped, e.ID)
		to.Removed++
		if comesBefore(backlog.Entry{Seq: to.Head, Place: to.Consumed}, e) {
			to.Head, to.Consumed = e.Seq, e.Place
		}
	}
	return to, skipped
}

func comesBefore(a, b backlog.Entry) bool {
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Place, b.Place)) < 0
}
