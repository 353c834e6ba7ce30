// Package outcome has the errors by which a handler tells how its attempt ends. Any other error is retried with backoff.
package outcome

import (
	"errors"
	"time"
)

type cause struct{ error }

func (c cause) Unwrap() error { return c.error }

// PermanentError fails the call, whatever attempts it has left.
type PermanentError struct{ cause }

// RetryAfterError retries the call after a delay of its own.
type RetryAfterError struct {
	cause
	After time.Duration
}

// RefusedError means that the API wants no more requests for a while: the call is no failure.
type RefusedError struct {
	cause
	After time.Duration // 0: it names no time
}

func (e *RefusedError) Error() string { return "refused: " + e.cause.Error() }

// SnoozeError puts the call off.
type SnoozeError struct{ After time.Duration }

func (e *SnoozeError) Error() string { return "snoozed for " + e.After.String() }

// NotSentError means that nothing reached the API.
type NotSentError struct{ cause }

func (e *NotSentError) Error() string { return "not sent: " + e.cause.Error() }

// Permanent returns a [PermanentError].
func Permanent(err error) error { return &PermanentError{orUnnamed(err)} }

// RetryAfter returns a [RetryAfterError].
func RetryAfter(d time.Duration, err error) error {
	return &RetryAfterError{orUnnamed(err), bounded(d)}
}

// Refused returns a [RefusedError].
func Refused(d time.Duration, err error) error { return &RefusedError{orUnnamed(err), bounded(d)} }

// Snooze returns a [SnoozeError].
func Snooze(d time.Duration) error { return &SnoozeError{bounded(d)} }

// NotSent returns a [NotSentError].
func NotSent(err error) error { return &NotSentError{orUnnamed(err)} }

// Chosen reports whether a handler chose how the attempt ends, rather than met an error.
func Chosen(err error) bool {
	return is[*PermanentError](err) || is[*RetryAfterError](err) || is[*RefusedError](err) || is[*SnoozeError](err) || is[*NotSentError](err)
}

// IsPermanent reports whether err fails the call.
func IsPermanent(err error) bool { return is[*PermanentError](err) }

// IsRefused reports whether err means that the API refused.
func IsRefused(err error) bool { return is[*RefusedError](err) }

// IsNotSent reports whether err means that nothing was sent.
func IsNotSent(err error) bool { return is[*NotSentError](err) }

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// bounded keeps d within what can be added to a time.
func bounded(d time.Duration) time.Duration {
	return min(max(d, 0), 100*365*24*time.Hour)
}

func orUnnamed(err error) cause {
	if err == nil {
		err = errors.New("no reason given")
	}
	return cause{err}
}
