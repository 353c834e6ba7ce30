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
	// Acked is when the API's machine had acknowledged its request, on the worker's clock, from before it asked for the start.
	// Only Acknowledge reads it.
	Acked time.Duration
}

// KeepOpen extends the deadlines after which recovery finds attempts lost to 30 s from now. It returns the calls whose
// attempts are still open. It does not wait for locks: a locked attempt is not returned.
func KeepOpen(ctx context.Context, db DB, attempts []Running) ([]int64, error) {
	kept, err := updateRunning(ctx, db, keepOpenSQL, attempts)
	return kept, wrap("keep attempts open", err)
}

// Acknowledge stores when the requests of open attempts had arrived, so that their units come free before the attempts
// end. It does not wait for locks: whoever holds one closes the attempt.
func Acknowledge(ctx context.Context, db DB, attempts []Running) error {
	_, err := updateRunning(ctx, db, acknowledgeSQL, attempts)
	return wrap("acknowledge requests", err)
}

func updateRunning(ctx context.Context, db DB, sql string, attempts []Running) ([]int64, error) {
	return queryIDs(ctx, db, sql, pgx.StrictNamedArgs{
		"ids":      column(attempts, func(a Running) int64 { return a.CallID }),
		"attempts": column(attempts, func(a Running) int32 { return a.Attempt }),
		"tokens":   column(attempts, func(a Running) int64 { return a.Token }),
		"acked":    column(attempts, func(a Running) int64 { return ceilMicros(a.Acked) }),
	})
}

const (
	keepOpenSQL = runningSQL + `
UPDATE call_open o SET deadline = greatest(o.deadline, clock_timestamp() + interval '30 seconds')
FROM free f WHERE o.call_id BETWEEN f.call_id AND f.call_id
RETURNING o.call_id`

	acknowledgeSQL = runningSQL + `
UPDATE call_open o SET acked_at = o.started_at + f.acked_us * interval '1 microsecond'
FROM free f WHERE o.call_id BETWEEN f.call_id AND f.call_id`

	// runningSQL locks those of the attempts that are open and free, in id order, as closeSQL does.
	runningSQL = `
WITH asked AS MATERIALIZED (
    SELECT *
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @acked::bigint[]) AS a (call_id, attempt, token, acked_us)
    ORDER BY call_id
), free AS MATERIALIZED (
    SELECT o.call_id, a.acked_us
    FROM asked a JOIN call_open o ON o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt AND o.token = a.token
    FOR NO KEY UPDATE OF o SKIP LOCKED
)`
)
