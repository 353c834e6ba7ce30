package tasks

import (
	"errors"
	"time"
)

// How a handler may end besides nil (done) and an error (retried with backoff).

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

type retryAfterError struct {
	err   error
	after time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

type snoozeError struct{ after time.Duration }

func (e *snoozeError) Error() string { return "snoozed for " + e.after.String() }

type notSentError struct{ err error }

func (e *notSentError) Error() string { return "not sent: " + e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

// Permanent ends the call as failed, whatever attempts it has left.
func Permanent(err error) error { return &permanentError{orUnnamed(err)} }

// RetryAfter retries the call after d instead of its queue's backoff. It counts as a failure.
func RetryAfter(d time.Duration, err error) error {
	return &retryAfterError{orUnnamed(err), delay(d)}
}

// Snooze puts the call off: it is made again after d, at once where d is not above 0. It is no
// failure and uses none of max_attempts; what the handler sent stays counted, and the next attempt
// uses the limits again. A call may be put off 500 times; once more is a permanent error.
func Snooze(d time.Duration) error { return &snoozeError{delay(d)} }

// NotSent is the handler's word that nothing reached the API: the attempt is charged to no limit
// and does not count as a failure; the call is tried again after the queue's shortest backoff. Where a request
// was written through Call.Client, it is an error like any other.
func NotSent(err error) error { return &notSentError{orUnnamed(err)} }

// delay keeps d within what can be added to a time.
func delay(d time.Duration) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	return min(max(d, 0), most)
}

func orUnnamed(err error) error {
	if err == nil {
		return errors.New("no reason given")
	}
	return err
}
