package callqueue

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// Call is one API call to make. The zero value of every field means its default.
type Call struct {
	// Queue names the queue, whose limits and retry policy apply. At most 255 bytes. Default: "default".
	Queue string
	// Task names the handler that makes the call. At most 255 bytes. Default: "http", which is built in.
	Task string
	// Key is whose call it is, for limits that are per key. At most 255 bytes. Default: "".
	Key string
	// Data is what the handler gets, as JSON of at most [MaxData] bytes that jsonb takes: without U+0000. A json.RawMessage or
	// []byte must be JSON already; json.Marshal encodes anything else. Default: {}.
	Data any
	// Cost is how many units the call takes of limits that count cost, at least 1. Default: 1.
	Cost int64
	// Priority is 0 (first) to 9 (last): new(0) points to 0. Default: nil, which means 5.
	Priority *int
	// RunAt is the earliest time to make the call. Default: now, by Postgres's clock.
	RunAt time.Time
	// ExpiresAt is when the call is no longer worth making: it then fails unsent. Not before RunAt. Default: never.
	ExpiresAt time.Time
	// UniqueKey is unique in its queue among unfinished calls. At most 255 bytes. Default: none.
	UniqueKey string
	// MaxAttempts bounds how often the call may fail, at most 1000. Default: its queue's.
	MaxAttempts int
}

// InvalidCallError is why a call was refused. Nothing was written.
type InvalidCallError struct {
	// Index is the call's index in the slice given to InsertMany, and 0 for a single insert. It is -1 if Postgres
	// refused a batch and did not say which call.
	Index int
	// Field is the name of Call's field, or "" if Postgres refused the call and did not say which.
	Field string
	// Reason is what is wrong with it, for people.
	Reason string

	cause error
}

func (e *InvalidCallError) Error() string {
	field := cmp.Or(e.Field, "it")
	if e.Index > 0 {
		return fmt.Sprintf("invalid call: index %d: %s %s", e.Index, field, e.Reason)
	}
	return fmt.Sprintf("invalid call: %s %s", field, e.Reason)
}

// Unwrap returns the cause, if any: [ErrTooLarge], an error of json.Marshal or one of Postgres.
func (e *InvalidCallError) Unwrap() error { return e.cause }

// The priorities that a call may have.
const (
	MinPriority     = 0 // first
	DefaultPriority = 5
	MaxPriority     = 9 // last
)

const (
	maxNameBytes = 255
	mostAttempts = 1000 // as of queues
)

// row is a call that was checked: with its defaults, but for what Postgres fills in for a zero value, and its data as JSON.
type row struct {
	Call
	json string
}

// check returns the call as a row. The error is what Postgres or a dispatcher would refuse in it.
func (c *Client) check(index int, call Call) (row, error) {
	refuse := func(field, reason string, args ...any) (row, error) {
		return row{}, &InvalidCallError{Index: index, Field: field, Reason: fmt.Sprintf(reason, args...)}
	}
	for _, name := range []struct{ field, text string }{
		{"Queue", call.Queue}, {"Task", call.Task}, {"Key", call.Key}, {"UniqueKey", call.UniqueKey},
	} {
		switch {
		case len(name.text) > maxNameBytes:
			return refuse(name.field, "is longer than %d bytes", maxNameBytes)
		case !utf8.ValidString(name.text) || strings.ContainsRune(name.text, 0):
			return refuse(name.field, "is not text that Postgres can store: UTF-8 without NUL bytes")
		}
	}
	call.RunAt, call.ExpiresAt = call.RunAt.UTC(), call.ExpiresAt.UTC()
	call.Queue, call.Task = cmp.Or(call.Queue, "default"), cmp.Or(call.Task, "http")
	call.Cost, call.Priority = cmp.Or(call.Cost, 1), cmp.Or(call.Priority, new(DefaultPriority))
	const wrongYear = "is in the year %d, outside 1 to 9999"
	switch {
	case call.RunAt.Year() < 1 || call.RunAt.Year() > 9999:
		return refuse("RunAt", wrongYear, call.RunAt.Year())
	case call.ExpiresAt.Year() < 1 || call.ExpiresAt.Year() > 9999:
		return refuse("ExpiresAt", wrongYear, call.ExpiresAt.Year())
	case call.Cost < 1:
		return refuse("Cost", "is %d, less than 1", call.Cost)
	case *call.Priority < MinPriority || *call.Priority > MaxPriority:
		return refuse("Priority", "is %d, outside %d to %d", *call.Priority, MinPriority, MaxPriority)
	case call.MaxAttempts < 0 || call.MaxAttempts > mostAttempts:
		return refuse("MaxAttempts", "is %d, outside 0 to %d", call.MaxAttempts, mostAttempts)
	case !call.ExpiresAt.IsZero() && call.ExpiresAt.Before(call.RunAt):
		return refuse("ExpiresAt", "is before it is due")
	}
	text, err := c.encode(call.Data)
	if err != nil {
		reason := strings.TrimPrefix(err.Error(), "call data ")
		return row{}, &InvalidCallError{Index: index, Field: "Data", Reason: reason, cause: err}
	}
	return row{call, text}, nil
}

// encode returns the data as JSON.
func (c *Client) encode(data any) (string, error) {
	var text []byte
	switch d := data.(type) {
	case nil:
	case json.RawMessage:
		text = d
	case []byte:
		text = d
	default:
		var err error
		if text, err = json.Marshal(data); err != nil {
			return "", err
		}
	}
	switch {
	case text == nil:
		return "{}", nil
	case len(text) > c.maxData:
		return "", fmt.Errorf("%w: %d bytes, of at most %d", ErrTooLarge, len(text), c.maxData)
	case !utf8.Valid(text):
		return "", errors.New("is not valid UTF-8")
	case !json.Valid(text):
		return "", errors.New("is not valid JSON")
	}
	return string(text), nil
}

// refusal turns Postgres's refusal of a call's values into an InvalidCallError, and returns other errors as they are. check does
// not know everything: that jsonb takes neither U+0000 nor half of a surrogate pair, or that a database is not in UTF-8.
func refusal(index int, err error) error {
	// Text, encoding, range; too large, too deep.
	codes := []string{"22P02", "22P05", "22021", "22003", "54000", "54001"}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(codes, pgErr.Code) {
		return &InvalidCallError{Index: index, Reason: "was refused by Postgres: " + pgErr.Message, cause: err}
	} else if ok && pgErr.Code == "CQ001" {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}
