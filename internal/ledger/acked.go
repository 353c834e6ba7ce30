package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Ack says that an open attempt's request was acknowledged by the API's machine.
type Ack struct {
	CallID  int64
	Attempt int32
	Token   int64
	After   time.Duration // on the worker's clock, from before it asked for the start
}

// Acknowledge notes when the requests of open attempts had arrived, so that their units need not wait for the
// attempts' ends.
func Acknowledge(ctx context.Context, db DB, acks []Ack) error {
	rows, err := db.Query(ctx, acknowledgeSQL, pgx.StrictNamedArgs{
		"ids":      column(acks, func(a Ack) int64 { return a.CallID }),
		"attempts": column(acks, func(a Ack) int32 { return a.Attempt }),
		"tokens":   column(acks, func(a Ack) int64 { return a.Token }),
		"after":    column(acks, func(a Ack) int64 { return ceilMicros(a.After) }),
	})
	if err != nil {
		return fmt.Errorf("acknowledge requests: %w", err)
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return fmt.Errorf("acknowledge requests: %w", err)
	}
	return nil
}

// It takes the rows' locks in id order, as closeSQL does, and waits for none: who has the lock closes the attempt.
const acknowledgeSQL = `
WITH asked AS MATERIALIZED (
    SELECT *
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @after::bigint[]) AS a (call_id, attempt, token, after_us)
    ORDER BY call_id
), free AS MATERIALIZED (
    SELECT o.call_id, o.started_at + a.after_us * interval '1 microsecond' AS acked_at
    FROM asked a JOIN call_open o ON o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt AND o.token = a.token
    FOR NO KEY UPDATE OF o SKIP LOCKED
)
UPDATE call_open o SET acked_at = f.acked_at
FROM free f
WHERE o.call_id BETWEEN f.call_id AND f.call_id`
