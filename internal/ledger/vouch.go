package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Vouched is an attempt that a living worker was told had started, and which it runs, or ended a moment ago.
type Vouched struct {
	CallID    int64
	Attempt   int32
	Token     int64
	StartedAt time.Time
	Within    time.Duration // from the start to its deadline
}

// Vouch has attempts that are open of a former epoch go on in this one, on the word of their worker: whatever else a failover lost,
// these are known. Where the start was lost, it is written again.
func Vouch(ctx context.Context, db DB, worker string, attempts []Vouched) ([]int64, error) {
	vouched, err := queryIDs(ctx, db, vouchSQL, pgx.StrictNamedArgs{
		"worker":   worker,
		"ids":      column(attempts, func(a Vouched) int64 { return a.CallID }),
		"attempts": column(attempts, func(a Vouched) int32 { return a.Attempt }),
		"tokens":   column(attempts, func(a Vouched) int64 { return a.Token }),
		"started":  column(attempts, func(a Vouched) time.Time { return a.StartedAt }),
		"within":   column(attempts, func(a Vouched) time.Duration { return a.Within }),
	})
	return vouched, Wrap("vouch for attempts", err)
}

// vouchSQL locks the open rows in id order, as closeSQL does.
const vouchSQL = `
WITH asked AS MATERIALIZED (
    SELECT *
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @started::timestamptz[], @within::interval[])
        AS a (call_id, attempt, token, started_at, within)
    ORDER BY call_id
), free AS MATERIALIZED (
    SELECT a.*
    FROM asked a JOIN callq.call_open o ON o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt
    WHERE (o.token = a.token OR o.token IS NULL) AND o.epoch <> (SELECT callq.epoch())
    FOR NO KEY UPDATE OF o SKIP LOCKED
)
UPDATE callq.call_open o
SET epoch = callq.epoch(), token = f.token, worker = @worker, started_at = coalesce(o.started_at, f.started_at),
    deadline = coalesce(o.deadline, f.started_at + f.within)
FROM free f WHERE o.call_id BETWEEN f.call_id AND f.call_id
RETURNING o.call_id`
