package callqueue

import (
	"context"
	"slices"
)

// Deletion is what [Client.Delete] did to a call.
type Deletion struct {
	ID int64 `json:"id"`
	// Deleted says that this Delete removed the call. If false, it is dispatched or has an Open attempt.
	Deleted bool   `json:"deleted"`
	Status  Status `json:"status"` // the last that it had
	Open    bool   `json:"open"`
}

// Delete removes calls that have ended or wait; a call that waited is not made. It leaves alone calls that are
// dispatched, or were cancelled and still run: cancel them first, and let them end. Deleting frees no units: the ledger
// keeps the attempts for as long as a limit may count them.
//
// Delete returns a Deletion for each call that existed, in the order given. If some did not exist, it deletes the
// others and returns a [*NotFoundError]. After any other error it may have deleted more than it returns.
//
// The role needs SELECT, UPDATE and DELETE on call_queue, and SELECT on call_open.
func (c *Client) Delete(ctx context.Context, ids ...int64) ([]Deletion, error) {
	return inChunks("delete calls", ids, func(some []int64, known map[int64]Deletion) error {
		found, err := changeLocked(ctx, c, deleteSQL, []any{some}, func(found []Deletion) string {
			// It may have held up others that fit.
			if slices.ContainsFunc(found, func(d Deletion) bool { return d.Deleted && !d.Status.Final() }) {
				return wakeFreedSQL
			}
			return ""
		})
		for _, d := range found {
			known[d.ID] = d
		}
		return err
	})
}

// The calls $1 are locked, so no claim opens an attempt of them. Open attempts and the ledger do not change.
const deleteSQL = `
WITH call AS MATERIALIZED (
    SELECT q.id, q.status, EXISTS (SELECT FROM call_open o WHERE o.call_id = q.id) AS open
    FROM call_queue q
    WHERE q.id = ANY($1::bigint[])
), deleted AS (
    DELETE FROM call_queue q
    USING call c
    WHERE q.id = c.id AND NOT c.open AND c.status <> 'dispatched'
    RETURNING q.id
)
SELECT c.id, d.id IS NOT NULL AS deleted, c.status, c.open
FROM call c
LEFT JOIN deleted d ON d.id = c.id`
