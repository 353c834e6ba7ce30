// Package callqueue is the producer's side of callq. A [Client] inserts calls, and gets, awaits, cancels, retries and deletes
// them. The package also has the statuses and outcomes that callq's other packages share.
//
// After an insert without an error, the call is as durable as a commit of its Postgres. It ends in a final status or
// stays pending, and never vanishes. [Client.InsertTx] and [Client.InsertManyTx] write in your own transaction: the
// call commits with it, or vanishes with it.
//
// An invalid call is refused before anything is written, with an [*InvalidCallError]. After any other error but
// [ErrDuplicate] the outcome may be unknown, for example if the connection broke during the commit. Then insert again
// with the same [Call.UniqueKey]: that adds no second call, as long as the first has not ended.
//
// An insert, by whatever client, also wakes the dispatchers, at most every 80 ms. If a wake is lost, they find the call at their
// next tick.
package callqueue

import (
	"errors"
	"fmt"

	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrDuplicate means that an unfinished call of the same queue has the same unique key. Nothing was written.
var ErrDuplicate = errors.New("an unfinished call has the same unique key")

// ErrFull means that as many calls of the queue, or of the key, wait as its max_waiting or max_waiting_per_key allows. Nothing was
// written. [Client.Backlog] tells how many wait.
var ErrFull = errors.New("the queue is full")

// ErrTooLarge means that a call's data exceeds [MaxData]. Nothing was written.
var ErrTooLarge = errors.New("call data is too large")

// ErrNotFound means that there is no such call: it was never inserted, was deleted, or retention removed it.
var ErrNotFound = errors.New("no such call")

// Client inserts, gets, awaits and changes calls. Goroutines may share it. It needs no closing.
type Client struct {
	pool    schema.DB
	schemas schema.Names
	maxData int
	awaited awaited
}

// Option changes a default of [New].
type Option func(*Client)

// MaxData bounds a call's data, in bytes of JSON. Default: 262,144 (256 KiB).
func MaxData(bytes int) Option {
	return func(c *Client) { c.maxData = bytes }
}

// Schemas sets where callq's own tables and call_queue are. Default: callq, public.
func Schemas(own, tables string) Option {
	return func(c *Client) { c.schemas = schema.Names{Own: own, Tables: tables} }
}

// New returns a client that uses the pool, which you close. It starts nothing and does not connect to Postgres. The
// error means that the pool is nil, or that no schema can have such a name.
func New(pool *pgxpool.Pool, opts ...Option) (*Client, error) {
	if pool == nil {
		return nil, errors.New("callqueue: the pool is nil")
	}
	c := &Client{maxData: 256 << 10}
	for _, opt := range opts {
		opt(c)
	}
	if err := c.schemas.Check(); err != nil {
		return nil, fmt.Errorf("callqueue: %w", err)
	}
	c.pool = c.schemas.In(pool)
	return c, nil
}

// Status is the state of a call.
type Status string

// A call is new or error while it waits, and dispatched while it has an open attempt. In the other statuses it has ended.
const (
	StatusNew        Status = "new"
	StatusDispatched Status = "dispatched"
	StatusDone       Status = "done"
	StatusError      Status = "error"     // will be tried again at run_at
	StatusFailed     Status = "failed"    // gave up; the error message has the reason
	StatusCancelled  Status = "cancelled" // by an operator
)

// Statuses returns all statuses.
func Statuses() []Status {
	return []Status{StatusNew, StatusDispatched, StatusDone, StatusError, StatusFailed, StatusCancelled}
}

// Final reports whether a call with this status has ended: only a retry changes it.
func (s Status) Final() bool {
	return s == StatusDone || s == StatusFailed || s == StatusCancelled
}

// Outcome is how an attempt ended, as the ledger records it.
type Outcome string

// How an attempt ends. Error, permanent and lost count towards max_attempts.
const (
	OutcomeDone      Outcome = "done"
	OutcomeError     Outcome = "error"     // may be tried again
	OutcomePermanent Outcome = "permanent" // would fail again
	OutcomeLost      Outcome = "lost"      // its worker never reported; the request may have been sent
	OutcomeNotSent   Outcome = "not_sent"  // provably never sent: nothing was charged
	OutcomeSnoozed   Outcome = "snoozed"   // postponed by its handler
	OutcomeRefused   Outcome = "refused"   // the API said that a limit is full: no failure
	OutcomeCancelled Outcome = "cancelled"
)
