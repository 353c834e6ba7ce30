package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/callq/callq/internal/outcome"
)

// Handler makes the call of one attempt. Its context ends at the call's timeout; the handler should return then. Until it
// does, its attempt stays open, and holds its slot and its units; callq doctor names it. (Call.Client sends nothing by
// then.) The context ends earlier, with the cause [ErrCancelled], within about two seconds of the call's being cancelled.
// A panic counts as an error; one that calls runtime.Goexit counts as lost.
type Handler func(ctx context.Context, call *Call) error

// ErrCancelled is the cause (context.Cause) with which a handler's context ends when its call is cancelled.
var ErrCancelled = errors.New("the call was cancelled")

// Permanent ends the call as failed, whatever attempts it has left.
func Permanent(err error) error { return outcome.Permanent(err) }

// RetryAfter retries the call after d instead of its queue's backoff. It counts as a failure.
func RetryAfter(d time.Duration, err error) error { return outcome.RetryAfter(d, err) }

// Refused says that the API refuses requests because a limit is full, for d; 0: for a time that it does not name. It is no failure: the
// call keeps its place, and its limits close for d, or for a spell, as docs/apis.md has it for the task http.
func Refused(d time.Duration, err error) error { return outcome.Refused(d, err) }

// Snooze puts the call off: it is made again after d, at once where d is not above 0. It is no failure and uses none of
// max_attempts; what the handler sent stays counted, and the next attempt uses the limits again. A call may be put off 500
// times; once more is a permanent error.
func Snooze(d time.Duration) error { return outcome.Snooze(d) }

// NotSent is the handler's word that nothing reached the API: the attempt is charged to no limit
// and does not count as a failure; the call is tried again after the queue's shortest backoff. Where a request
// was written through Call.Client, it is an error like any other.
func NotSent(err error) error { return outcome.NotSent(err) }

// Call is what a handler is given: one attempt of one call. It belongs to the handler until
// that returns and is not safe for concurrent use.
type Call struct {
	ID      int64
	Attempt int // 1 for the first
	Queue   string
	Task    string
	Key     string
	Cost    int64
	Data    json.RawMessage // call_data
	// IdempotencyKey is the same for every attempt of the call, and no other call has it, of whatever database or
	// time. The task http and Client send it as the header Idempotency-Key.
	IdempotencyKey string
	// Client makes the one request that an attempt may make through it. It gives a custom handler what the task http has:
	//
	//   - at most one request is made; a second is refused, also where the first could not be sent, and so are
	//     redirects, which it hands out as they are;
	//   - nothing is written once the handler has ended, its context too, nor, where one of the call's limits
	//     has anchor: start, later than its send_within after the start was asked for. A request that was not
	//     written in time is then an error that wraps [NotSent]: return it, and the attempt uses no unit;
	//   - when it was written and answered is measured, so that limits with anchor: start count the request
	//     until it arrived, not until the handler ended;
	//   - it carries Idempotency-Key, Callq-Call-Id and Callq-Attempt, unless the handler set them;
	//   - it goes where the worker's Config.Client allows (nil: Config.HTTP): Hosts, and no private address but those
	//     named there.
	//
	// A limit with anchor: start is the handler's promise to send nothing by other means, and at once:
	// connecting counts. (Where one did not connect in time, the next attempt finds the connection.)
	// Under other limits it may send when it likes, through the Client or not; they count it until it ends.
	//
	// HTTP/1.1, without a proxy, answers are not decompressed, and headers about the connection (Expect, Upgrade,
	// …) are refused.
	Client *http.Client

	result  json.RawMessage
	budgets *budgets // nil: no worker made it
	settled *int64
}

// Bind reads the call's data into v. Data that does not fit is a permanent error.
func (c *Call) Bind(v any) error {
	if err := json.Unmarshal(c.Data, v); err != nil {
		return Permanent(fmt.Errorf("read call_data: %w", err))
	}
	return nil
}

// SetResult keeps v, as JSON, in the ledger's result. One of more than 1 MiB is a permanent error: it could keep the
// outcome from being recorded in time. What jsonb does not take, as U+0000, is left out later, and logged.
func (c *Call) SetResult(v any) error {
	data, err := json.Marshal(v)
	switch {
	case err != nil:
		return fmt.Errorf("write result: %w", err)
	case len(data) > maxResult:
		return Permanent(fmt.Errorf("write result: it has %d bytes; %d are allowed", len(data), maxResult))
	}
	c.result = data
	return nil
}

const maxResult = 1 << 20

// Settle reports what the call really cost: its limits that count cost are charged n units instead of Cost when the attempt ends,
// however it ends; the others count it as before. The last Settle counts, and 0 charges those limits nothing. Until the attempt
// ends they count Cost, and so they do where the worker is lost; an attempt that was not sent is charged nothing anyway.
//
// Claim an upper bound as Cost. Fewer units come free at once, for the API took no more. More are charged in
// full, and count from then on, but other calls may have been claimed by then: the window can hold more than the
// rate, which cannot be undone. callq verify reports it.
//
// An n below 0, or above 1e12, is an error, and changes nothing.
func (c *Call) Settle(n int64) error {
	if n < 0 || n > maxSettled {
		return fmt.Errorf("settle the cost: it is %d; it must be between 0 and %d", n, int64(maxSettled))
	}
	c.settled = &n
	return nil
}

// maxSettled keeps the sums of a window within what Postgres adds up.
const maxSettled = 1e12
