package callqueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Wait waits until a call has ended, however that takes, and returns it. It may have failed or been cancelled: see its Status. A call
// that was cancelled may still run. The error is [ErrNotFound] if there is no such call, or it is deleted meanwhile. One whose transaction
// has not committed does not exist yet.
//
// However many goroutines wait, the client asks for all their calls together, by plain queries, so that a pooler is no hindrance. It
// asks for a call 20 ms after it is first waited for, then at growing intervals, and at last every 250 ms. A wait outlasts a Postgres
// that is away, but fails after 30 seconds without an answer.
//
// The role needs what [Client.Get] needs.
func (c *Client) Wait(ctx context.Context, id int64) (*Record, error) {
	calls, err := c.WaitMany(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, ErrNotFound
	case err != nil:
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
		switch {
		case err != nil && ctx.Err() == nil && isAway(err):
			continue // until it answers, or all gives up
		case err != nil:
			return nil, fmt.Errorf("wait for calls: %w", err)
		case slices.ContainsFunc(calls, func(r *Record) bool { return !r.Status.Final() }):
			continue // one was retried in between
		case len(calls) == len(ids):
			return calls, nil
		}
		found := make(map[int64]bool, len(calls))
		for _, r := range calls {
			found[r.ID] = true
		}
		return calls, &NotFoundError{slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return found[id] })}
	}
}

const (
	minAsk    = 20 * time.Millisecond // between two questions
	maxAsk    = 250 * time.Millisecond
	askWithin = 5 * time.Second
	awayFor   = 30 * time.Second
	askFor    = 1000 // calls in one question
)

// awaited is the calls that somebody waits for. While there are any, one goroutine asks for all of them.
type awaited struct {
	mu     sync.Mutex
	calls  map[int64]*awaitedCall
	asking bool
}

type awaitedCall struct {
	waiters  int
	since    time.Time
	next     time.Time     // when to ask
	answered time.Time     // when Postgres last said that it waits
	ended    chan struct{} // closed when it has ended or is gone, or when err is why that cannot be known
	err      error
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
	if w.calls == nil {
		w.calls = map[int64]*awaitedCall{}
	}
	now := time.Now()
	list := make([]*awaitedCall, len(ids))
	for i, id := range ids {
		call := w.calls[id]
		if call == nil {
			call = &awaitedCall{since: now, next: now, answered: now, ended: make(chan struct{})}
			w.calls[id] = call
		}
		call.waiters++
		list[i] = call
	}
	if !w.asking && len(w.calls) > 0 {
		w.asking = true
		go w.ask(c)
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

// ask asks for the calls that are due, until no caller waits.
func (w *awaited) ask(c *Client) {
	for ids := w.due(); ids != nil; ids = w.due() {
		pause := minAsk
		if len(ids) > 0 {
			waiting, err := c.unended(ids)
			if w.tell(time.Now(), ids, waiting, err); err != nil {
				pause = maxAsk
			}
		}
		time.Sleep(pause)
	}
}

// due returns which calls to ask for; nil: no caller waits, and nothing asks any more.
func (w *awaited) due() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asking = len(w.calls) > 0; !w.asking {
		return nil
	}
	now, ids := time.Now(), []int64{}
	for id, call := range w.calls {
		if len(ids) < askFor && !call.next.After(now) {
			ids = append(ids, id)
		}
	}
	return ids
}

// tell ends the waits for those asked for that do not wait any more. After an error it ends those that have no answer to hope for.
func (w *awaited) tell(now time.Time, asked, waiting []int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range waiting {
		if call := w.calls[id]; call != nil {
			call.answered, call.next = now, now.Add(min(max(now.Sub(call.since)/4, minAsk), maxAsk))
		}
	}
	for _, id := range asked {
		call := w.calls[id]
		if call == nil || call.answered.Equal(now) || err != nil && isAway(err) && now.Sub(call.answered) < awayFor {
			continue
		}
		call.err = err
		close(call.ended)
		delete(w.calls, id)
	}
}

// unended returns which of the calls have not ended.
func (c *Client) unended(ids []int64) ([]int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin) // the caller's may end before
	defer cancel()
	rows, _ := c.pool.Query(ctx, unendedSQL, ids) // CollectRows returns its error
	waiting, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil && ctx.Err() != nil {
		err = errSilent // not that of the caller's context
	}
	return waiting, err
}

const unendedSQL = `SELECT id FROM public.call_queue WHERE id = ANY($1::bigint[]) AND status NOT IN ('done', 'failed', 'cancelled')`

// errSilent is why a question has no answer while no connection is free, or Postgres is silent.
var errSilent = fmt.Errorf("no answer from Postgres within %s", askWithin)

// isAway reports whether a query failed because Postgres is away, full, starting or shutting down, so that it may succeed later.
func isAway(err error) bool {
	if refused, is := errors.AsType[*pgconn.PgError](err); is {
		return slices.ContainsFunc([]string{"08", "40", "53", "57"}, func(class string) bool { return strings.HasPrefix(refused.Code, class) })
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return connecting || network || pgconn.SafeToRetry(err) || errors.Is(err, pgconn.ErrConnClosed) || // it only reads
		errors.Is(err, errSilent) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
