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

type notSentError struct{ err error }

func (e *notSentError) Error() string { return "not sent: " + e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

// Permanent ends the call as failed, whatever attempts it has left.
func Permanent(err error) error { return &permanentError{orUnnamed(err)} }

// RetryAfter retries the call after d instead of its queue's backoff. It counts as a failure.
func RetryAfter(d time.Duration, err error) error {
	return &retryAfterError{orUnnamed(err), max(d, 0)}
}

// NotSent is the handler's word that nothing reached the API: the attempt is charged to no limit
// and does not count as a failure; the call is tried again after the queue's shortest backoff.
func NotSent(err error) error { return &notSentError{orUnnamed(err)} }

func orUnnamed(err error) error {
	if err == nil {
		return errors.New("no reason given")
	}
	return err
}
