package callqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Wait waits until a call has ended, however that takes, and returns it. It may have failed or been cancelled: see its Status. A call
// that was cancelled may still run. The error is [ErrNotFound] if there is no such call, or it is deleted meanwhile.
//
// However many goroutines wait, the client asks for all their calls together, by plain queries, so that a pooler is no hindrance. It
// asks for each call every 20 ms at first, and after a quarter of the time that it was waited for, 250 ms at most. While
// Postgres is away it asks again, for 30 seconds.
//
// The role needs what [Client.Get] needs.
func (c *Client) Wait(ctx context.Context, id int64) (*Record, error) {
	calls, err := c.WaitMany(ctx, id)
	if err != nil {
		if _, missing := errors.AsType[*NotFoundError](err); missing {
			err = ErrNotFound
		}
		return nil, err
	}
	return calls[0], nil
}

// WaitMany is [Client.Wait] for several calls. It returns them in the order given, once all have ended. If some do not exist, it
// returns the others and a [*NotFoundError].
func (c *Client) WaitMany(ctx context.Context, ids ...int64) ([]*Record, error) {
	for {
		if err := c.awaited.all(ctx, c, ids); err != nil {
			return nil, fmt.Errorf("wait for calls: %w", err)
		}
		calls, err := c.records(ctx, ids)
		if err != nil {
			return nil, fmt.Errorf("wait for calls: %w", err)
		}
		waits := func(r *Record) bool { return !r.Status.Final() } // it was retried in between
		if slices.ContainsFunc(calls, waits) {
			continue
		}
		if len(calls) == len(ids) {
			return calls, nil
		}
		return calls, &NotFoundError{slices.DeleteFunc(slices.Clone(ids), func(id int64) bool {
			return slices.ContainsFunc(calls, func(r *Record) bool { return r.ID == id })
		})}
	}
}

const (
	askMost   = 20 * time.Millisecond
	askLeast  = 250 * time.Millisecond
	askWithin = 5 * time.Second
	awayFor   = 30 * time.Second
)

// awaited is the calls that somebody waits for. While there are any, one goroutine asks for all of them.
type awaited struct {
	mu     sync.Mutex
	calls  map[int64]*awaitedCall
	asking bool
	next   time.Time     // when it asks
	sooner chan struct{} // holds a token if it is to ask before
}

type awaitedCall struct {
	since, next time.Time
	waiters     int
	ended       chan struct{} // closed when it has ended or is gone, or when err says why that cannot be known
	err         error
}

func newAwaited() awaited {
	return awaited{calls: map[int64]*awaitedCall{}, sooner: make(chan struct{}, 1)}
}

// all returns when all calls have ended, or are gone.
func (w *awaited) all(ctx context.Context, c *Client, ids []int64) error {
	calls := w.join(c, ids)
	defer w.leave(ids, calls)
	for _, call := range calls {
		select {
		case <-call.ended:
			if call.err != nil {
				return call.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (w *awaited) join(c *Client, ids []int64) []*awaitedCall {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	var list []*awaitedCall
	for _, id := range ids {
		call := w.calls[id]
		if call == nil {
			call = &awaitedCall{since: now, next: now, ended: make(chan struct{})}
			w.calls[id] = call
		}
		call.waiters++
		list = append(list, call)
	}
	switch {
	case !w.asking && len(w.calls) > 0:
		w.asking = true
		go w.ask(c)
	case w.next.After(now.Add(askMost)):
		select {
		case w.sooner <- struct{}{}:
		default:
		}
	}
	return list
}

func (w *awaited) leave(ids []int64, calls []*awaitedCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, call := range calls {
		if call.waiters--; call.waiters == 0 && w.calls[ids[i]] == call {
			delete(w.calls, ids[i])
		}
	}
}

// ask asks for the calls that are due, until nobody waits.
func (w *awaited) ask(c *Client) {
	answered := time.Now()
	for {
		ids := w.due()
		if ids == nil {
			return
		}
		waiting, err := c.unended(ids)
		pause := time.Duration(0)
		switch {
		case err == nil:
			answered = time.Now()
			w.tell(ids, waiting, nil)
		case final(err) || time.Since(answered) > awayFor:
			w.tell(ids, nil, err)
		default:
			pause = askLeast
		}
		select {
		case <-w.sooner:
		case <-time.After(max(pause, w.rest())):
		}
	}
}

// due returns which calls to ask for; nil: nobody waits, and nobody asks any more.
func (w *awaited) due() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asking = len(w.calls) > 0
	if !w.asking {
		return nil
	}
	now, ids := time.Now(), []int64{}
	for id, call := range w.calls {
		if !call.next.After(now) {
			ids = append(ids, id)
		}
	}
	return ids
}

// tell ends the wait for the calls that do not wait any more.
func (w *awaited) tell(asked, waiting []int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, id := range waiting {
		if call := w.calls[id]; call != nil {
			call.next = now.Add(min(max(now.Sub(call.since)/4, askMost), askLeast))
		}
	}
	for _, id := range asked {
		if call := w.calls[id]; call != nil && !call.next.After(now) { // the others have just been put off
			call.err = err
			close(call.ended)
			delete(w.calls, id)
		}
	}
}

// rest is until when nothing is to be asked.
func (w *awaited) rest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.next = now.Add(askLeast)
	for _, call := range w.calls {
		if call.next.Before(w.next) {
			w.next = call.next
		}
	}
	if soonest := now.Add(askMost); w.next.Before(soonest) {
		w.next = soonest
	}
	return w.next.Sub(now)
}

// unended returns which of the calls have not ended.
func (c *Client) unended(ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), askWithin) // whoever's waits may end before
	defer cancel()
	rows, _ := c.pool.Query(ctx, unendedSQL, ids) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

const unendedSQL = `SELECT id FROM call_queue WHERE id = ANY($1::bigint[]) AND status NOT IN ('done', 'failed', 'cancelled')`

// final reports whether Postgres refused a query, and would again: it is not away, full or shutting down.
func final(err error) bool {
	refused, is := errors.AsType[*pgconn.PgError](err)
	return is && !slices.Contains([]string{"08", "40", "53", "57"}, refused.Code[:2])
}
