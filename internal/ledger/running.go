package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Running is an open attempt that this worker's token started.
type Running struct {
	CallID  int64
	Attempt int32
	Token   int64
}

// KeepOpen extends the deadlines after which recovery finds attempts lost to 30 s from now. It returns the calls whose
// attempts are still open. It does not wait for locks: a locked attempt is not returned.
func KeepOpen(ctx context.Context, db DB, attempts []Running) ([]int64, error) {
	kept, err := queryIDs(ctx, db, keepOpenSQL, pgx.StrictNamedArgs{
		"ids":      column(attempts, func(a Running) int64 { return a.CallID }),
		"attempts": column(attempts, func(a Running) int32 { return a.Attempt }),
		"tokens":   column(attempts, func(a Running) int64 { return a.Token }),
		"after":    nil,
	})
	return kept, wrap("keep attempts open", err)
}

// Ack notes that the API's machine acknowledged the request of an open attempt.
type Ack struct {
	CallID  int64
	Attempt int32
	Token   int64
	After   time.Duration // on the worker's clock, from before it asked for the start
}

// Acknowledge stores when the requests of open attempts had arrived, so that their units come free before the attempts
// end. It does not wait for locks: whoever holds one closes the attempt.
func Acknowledge(ctx context.Context, db DB, acks []Ack) error {
	_, err := queryIDs(ctx, db, acknowledgeSQL, pgx.StrictNamedArgs{
		"ids":      column(acks, func(a Ack) int64 { return a.CallID }),
		"attempts": column(acks, func(a Ack) int32 { return a.Attempt }),
		"tokens":   column(acks, func(a Ack) int64 { return a.Token }),
		"after":    column(acks, func(a Ack) int64 { return ceilMicros(a.After) }),
	})
	return wrap("acknowledge requests", err)
}

const (
	keepOpenSQL = runningSQL + `
UPDATE call_open o SET deadline = greatest(o.deadline, clock_timestamp() + interval '30 seconds')
FROM free f WHERE o.call_id BETWEEN f.call_id AND f.call_id
RETURNING o.call_id`

	acknowledgeSQL = runningSQL + `
UPDATE call_open o SET acked_at = o.started_at + f.after_us * interval '1 microsecond'
FROM free f WHERE o.call_id BETWEEN f.call_id AND f.call_id`

	// runningSQL locks those of the attempts that are open and free, in id order, as closeSQL does.
	runningSQL = `
WITH asked AS MATERIALIZED (
    SELECT *
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @after::bigint[]) AS a (call_id, attempt, token, after_us)
    ORDER BY call_id
), free AS MATERIALIZED (
    SELECT o.call_id, a.after_us
    FROM asked a JOIN call_open o ON o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt AND o.token = a.token
    FOR NO KEY UPDATE OF o SKIP LOCKED
)`
)
