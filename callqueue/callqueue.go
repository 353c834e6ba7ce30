// Package callqueue is the producer's side of callq: it inserts the calls to make, finds, cancels, retries and
// deletes them. It also holds the words that callq's other parts share.
//
// An insert that returned without an error is durable as far as the Postgres it went to makes a
// commit durable: the call then ends in a final status or stays visibly pending, and never
// vanishes. [Client.InsertTx] and [Client.InsertManyTx] write in the caller's own transaction: the
// call commits with it, or vanishes with it.
//
// A call that cannot be right is refused before anything is written, with an [*InvalidCallError].
// Any other error but [ErrDuplicate] may leave the outcome unknown, as when the connection broke
// while Postgres was committing. Inserting again with the same [Call.UniqueKey] then adds no second
// call, as long as the first has not ended meanwhile.
//
// An insert also wakes the dispatchers, at most every 5 ms for each Client. Should a wake be lost,
// they find the call at their next scheduled look.
package callqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrDuplicate says that an unfinished call of the same queue has the same unique key already.
// Nothing was written.
var ErrDuplicate = errors.New("an unfinished call has the same unique key")

// ErrTooLarge says that a call's data is larger than [MaxData] allows. Nothing was written.
var ErrTooLarge = errors.New("call data is too large")

// ErrNotFound says that there is no such call.
var ErrNotFound = errors.New("no such call")

const defaultMaxData = 256 << 10

// Client inserts calls, finds and changes them. It may be used by many goroutines at once, and needs no
// closing.
type Client struct {
	pool    *pgxpool.Pool
	maxData int
	waker   waker
}

// Option changes a default of [New].
type Option func(*Client)

// MaxData is the most that a call's data may take as JSON, in bytes. Default: 262,144 (256 KiB).
func MaxData(bytes int) Option {
	return func(c *Client) { c.maxData = bytes }
}

// New returns a client on a pool that stays the caller's to close. It starts nothing and does not
// talk to Postgres.
func New(pool *pgxpool.Pool, opts ...Option) (*Client, error) {
	if pool == nil {
		return nil, errors.New("callqueue: the pool is nil")
	}
	c := &Client{pool: pool, maxData: defaultMaxData}
	c.waker.send = c.wakeAlone
	for _, opt := range opts {
		opt(c)
	}
	if c.maxData < len(emptyData) {
		return nil, fmt.Errorf("callqueue: MaxData is %d bytes, which holds no call", c.maxData)
	}
	return c, nil
}

// wakeAlone says a wake outside any insert. Its failure does no harm: the next tick finds the calls.
func (c *Client) wakeAlone() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = c.pool.Exec(ctx, wakeSQL)
}
