package ledger

import (
	"context"

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
	})
	return kept, wrap("keep attempts open", err)
}

const keepOpenSQL = `
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[]) AS a (call_id, attempt, token) ORDER BY call_id
), free AS MATERIALIZED (
    SELECT o.call_id
    FROM asked a JOIN call_open o ON o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt AND o.token = a.token
    FOR NO KEY UPDATE OF o SKIP LOCKED
)
UPDATE call_open o SET deadline = greatest(o.deadline, clock_timestamp() + interval '30 seconds')
FROM free f
WHERE o.call_id BETWEEN f.call_id AND f.call_id
RETURNING o.call_id`
