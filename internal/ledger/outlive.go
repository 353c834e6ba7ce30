package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Running is an open attempt of the worker that has its token.
type Running struct {
	CallID  int64
	Attempt int32
	Token   int64
}

// KeepOpen puts off the deadlines of attempts by which recovery takes them for lost, to 30 s from now, and returns the
// calls of those that are still open. Others' locks are not waited for: what is locked is not returned.
func KeepOpen(ctx context.Context, db DB, attempts []Running) ([]int64, error) {
	kept, err := queryIDs(ctx, db, keepOpenSQL, pgx.StrictNamedArgs{
		"ids":      column(attempts, func(r Running) int64 { return r.CallID }),
		"attempts": column(attempts, func(r Running) int32 { return r.Attempt }),
		"tokens":   column(attempts, func(r Running) int64 { return r.Token }),
	})
	if err != nil {
		return nil, fmt.Errorf("keep attempts open: %w", err)
	}
	return kept, nil
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
