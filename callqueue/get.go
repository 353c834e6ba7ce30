package callqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Record is a call as it stood when [Client.Get] read it. It mirrors the call's row, and its JSON is what
// `callq calls get -o json` prints.
//
// Times are in UTC. A plain INSERT may have written one outside the years 1 to 9999, or 'infinity': then it is the
// nearest time within them.
type Record struct {
	ID    int64  `json:"id"`
	Queue string `json:"queue"`
	Task  string `json:"task"`
	Key   string `json:"key"`
	Progress
	Priority  int        `json:"priority"`
	Cost      int64      `json:"cost"`
	RunAt     time.Time  `json:"run_at"`
	ExpiresAt *time.Time `json:"expires_at"`
	// UniqueKey is nil once the call has ended.
	UniqueKey *string         `json:"unique_key"`
	Data      json.RawMessage `json:"call_data"`
	// MaxAttempts is nil if the queue's applies.
	MaxAttempts *int `json:"max_attempts"`
}

// Progress is what has become of a call.
type Progress struct {
	Status Status `json:"status"`
	// Running reports that an attempt has started and has not ended. A cancelled call may still run.
	Running bool `json:"running"`
	// Attempts counts the claims made of it, FailedCount those that failed or were lost.
	Attempts     int     `json:"attempts"`
	FailedCount  int     `json:"failed_count"`
	ErrorMessage *string `json:"error_message"`
	// Code is the HTTP status that the last attempt that ended was answered with; nil if there was no answer. TookMS is how many
	// milliseconds the answer took, or for how long a custom handler ran.
	Code   *int `json:"code"`
	TookMS *int `json:"took_ms" db:"took_ms"`
	// Result is what that attempt left; nil if nothing.
	Result       json.RawMessage `json:"result"`
	CreatedAt    time.Time       `json:"created_at"`
	DispatchedAt *time.Time      `json:"dispatched_at"`
	FinishedAt   *time.Time      `json:"finished_at"`
}

// Get returns a call. The error is [ErrNotFound] if there is none, for example because retention removed it.
//
// The role needs SELECT on call_queue, call_effective, call_open and call_attempts.
func (c *Client) Get(ctx context.Context, id int64) (*Record, error) {
	calls, err := c.records(ctx, []int64{id})
	switch {
	case err != nil:
		return nil, fmt.Errorf("get call: %w", err)
	case len(calls) == 0:
		return nil, ErrNotFound
	}
	return calls[0], nil
}

// records reads those of the calls that exist, in the order given.
func (c *Client) records(ctx context.Context, ids []int64) ([]*Record, error) {
	rows, _ := c.pool.Query(ctx, getSQL, ids) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[Record])
}

// Reads each call, its open attempt and its newest ledger row by their primary keys. Times are in UTC, and in the years that JSON can write; a CASE keeps NULL, which least and greatest pass over.
const getSQL = `
WITH years (first, last) AS (VALUES (timestamp '0001-01-01 00:00:00', timestamp '9999-12-31 23:59:59.999999'))
SELECT id, queue, task, key, status,
    EXISTS (SELECT FROM callq.call_open o WHERE o.call_id = c.id AND o.started_at IS NOT NULL) AS running,
    attempts, failed_count, error_message, last.code, last.took_ms, last.result,
    least(greatest(created_at AT TIME ZONE 'UTC', first), last) AS created_at,
    CASE WHEN dispatched_at IS NOT NULL THEN least(greatest(dispatched_at AT TIME ZONE 'UTC', first), last) END AS dispatched_at,
    CASE WHEN finished_at IS NOT NULL THEN least(greatest(finished_at AT TIME ZONE 'UTC', first), last) END AS finished_at,
    priority, cost,
    least(greatest(run_at AT TIME ZONE 'UTC', first), last) AS run_at,
    CASE WHEN expires_at IS NOT NULL THEN least(greatest(expires_at AT TIME ZONE 'UTC', first), last) END AS expires_at,
    unique_key, call_data AS data, max_attempts
FROM years, unnest($1::bigint[]) WITH ORDINALITY AS asked (call_id, nth)
JOIN callq.call_effective c ON c.id BETWEEN asked.call_id AND asked.call_id
LEFT JOIN LATERAL (
    SELECT code, took_ms, result FROM public.call_attempts a WHERE a.call_id = c.id AND a.attempt > 0 ORDER BY a.attempt DESC LIMIT 1
) last ON true
ORDER BY nth`
