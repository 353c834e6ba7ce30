package ledger

import (
	"context"
	"fmt"

	"github.com/callq/callq/callqueue"
	"github.com/jackc/pgx/v5"
)

// Unstarted selects the attempts to recall: of these queues, or charged to this limit; with a key, only that key's.
type Unstarted struct {
	Queues []string
	Limit  string
	Key    string
}

// Recall closes attempts that nobody has started, unsent. It charges nothing, and their calls wait again. The caller holds
// the locks of the queues or limits, or has paused them, so no claim opens others meanwhile. Recall waits for the attempts'
// locks, until it knows whether a start has happened. It returns how many it recalled.
func Recall(ctx context.Context, tx pgx.Tx, u Unstarted, why string) (int, error) {
	rows, err := tx.Query(ctx, recallSQL, append([]string{}, u.Queues...), u.Limit, u.Key)
	if err != nil {
		return 0, fmt.Errorf("recall unstarted attempts: %w", err)
	}
	closings, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Closing, error) {
		c := Closing{
			Unstarted: true, Outcome: callqueue.OutcomeNotSent, Status: callqueue.StatusNew, Error: "not sent: recalled, for " + why,
		}
		return c, row.Scan(&c.CallID, &c.Attempt)
	})
	if err != nil || len(closings) == 0 {
		return 0, wrap("recall unstarted attempts", err)
	}
	closed, err := closeWaiting(ctx, tx, "0", closings)
	return len(closed), wrap("recall unstarted attempts", err)
}

const recallSQL = `
SELECT call_id, attempt FROM call_open
WHERE started_at IS NULL AND epoch = (SELECT callq_epoch()) AND (queue = ANY($1) OR limits @> ARRAY[$2]) AND ($3 = '' OR key = $3)
ORDER BY call_id
FOR UPDATE`
