package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// StartRequest asks that an attempt be started. Token is the asker's own, drawn once per attempt
// it runs: asking again with the same one is safe, and answers as if for the first time.
type StartRequest struct {
	CallID  int64
	Attempt int32
	Token   int64
	// Epoch is the one that the attempt was loaded under: after a failover that lost calls its ids may be
	// another's. "": nothing was loaded.
	Epoch string
	// Timeout is how long the handler may take; 0: as long as its queue says, and the answer says
	// all else that is to be known of the attempt.
	Timeout time.Duration
}

// StartAnswer says what became of a StartRequest.
type StartAnswer struct {
	CallID int64
	Token  int64
	// StartedAt is Postgres's clock inside the start; nil: not started, and it never will be for
	// this token.
	StartedAt *time.Time
	// SendWithin is how long after asking the request may be written; nil: no limit asks.
	SendWithin *time.Duration
	// Gone: the attempt is open but its call was deleted or cancelled; close it unsent.
	Gone bool
	// Busy: somebody else holds the attempt's row; ask again, apart from others.
	Busy bool
	// Expired: the attempt is open but its call's time has passed; close it unsent.
	Expired bool
	// Work is nil unless it was started and asked for.
	Work *Work
}

// Work is what a handler needs of an attempt.
type Work struct {
	Queue       string
	Task        string
	Key         string
	Cost        int64
	Data        []byte
	CreatedAt   time.Time // of the call
	FailedCount int
	Policy      Policy
	Timeout     time.Duration
	Limits      []string // that it is charged to
	Keys        []string // of the limits, in their order; "" where one is not per key
	Frees       bool     // its end frees a unit of a concurrency limit
}

// StartWithin is how long a claimed attempt may wait for its start. If its queue's hours end sooner, that is the end: nothing
// starts after it, and recovery takes back what was handed over.
const StartWithin = 30 * time.Second

// CreatedAtSQL is created_at of a call q as Go can read it: not infinite, which one row would spoil its statement with.
const CreatedAtSQL = `least(greatest(coalesce(q.created_at, 'epoch'), timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 23:59:59.999999Z')`

// Start starts attempts, each by a compare-and-set on its open row, locked in id order; it is
// durable when it returns. An error leaves unknown what has started: ask again with the same
// tokens; one that is [Busy] says that nothing has. Answers come in the requests' order.
func Start(ctx context.Context, db DB, worker string, requests []StartRequest) ([]StartAnswer, error) {
	rows, err := db.Query(ctx, startSQL, pgx.StrictNamedArgs{
		"worker":   worker,
		"ids":      column(requests, func(r StartRequest) int64 { return r.CallID }),
		"attempts": column(requests, func(r StartRequest) int32 { return r.Attempt }),
		"tokens":   column(requests, func(r StartRequest) int64 { return r.Token }),
		"epochs":   column(requests, func(r StartRequest) string { return r.Epoch }),
		"timeouts": column(requests, func(r StartRequest) *int64 { return nonZero(ceilMicros(r.Timeout)) }),
	})
	if err != nil {
		return nil, fmt.Errorf("start attempts: %w", err)
	}
	known, err := pgx.CollectRows(rows, scanAnswer)
	if err != nil {
		return nil, fmt.Errorf("start attempts: %w", err)
	}
	type asked struct{ callID, token int64 }
	byAsked := make(map[asked]int, len(known))
	for i, k := range known {
		byAsked[asked{k.CallID, k.Token}] = i
	}
	answers := make([]StartAnswer, len(requests))
	for i, r := range requests {
		if k, ok := byAsked[asked{r.CallID, r.Token}]; ok {
			answers[i] = known[k]
			continue
		}
		answers[i] = StartAnswer{CallID: r.CallID, Token: r.Token} // neither started, gone nor expired
	}
	return answers, nil
}

// scanAnswer goes by the columns' order: finding twenty fields by name in each row is dear.
func scanAnswer(row pgx.CollectableRow) (StartAnswer, error) {
	var a StartAnswer
	var wanted bool
	var w Work
	err := row.Scan(&a.CallID, &a.Token, &a.StartedAt, &a.SendWithin, &a.Gone, &a.Expired, &wanted,
		&w.Queue, &w.Task, &w.Key, &w.Cost, &w.Data, &w.CreatedAt, &w.FailedCount,
		&w.Policy.MaxAttempts, &w.Policy.BackoffMin, &w.Policy.BackoffMax, &w.Timeout, &w.Limits, &w.Keys, &w.Frees)
	if wanted {
		a.Work = &w
	}
	return a, err
}

// asked finds each row by its id, in id order, and so the rows are locked in that order; it carries what
// the rest needs: to join two lists of a batch's size is quadratic where Settings leave only nested
// loops. The epoch is read once, for each reading opens a file.
//
// The conditions stand on call_open's own columns, for only those are read again after a wait
// for a lock. A row that already carries the token keeps its first started_at and deadline, and the
// timeout that is answered is that deadline's, whatever the queue says by now. One batch may ask
// for an attempt twice, when Redis delivered it twice: only the token that the row took counts.
// The clock is read after the asker's own, and that is what its bounds rest on; a start is never
// earlier than its claim, though the clock may have been set back in between. The commit waits for
// the disk, whatever the server or the worker's own pool is set to.
const startSQL = `
WITH asked AS MATERIALIZED (
    SELECT a.call_id, a.attempt, a.token, a.epoch, a.timeout_us IS NULL AS wanted, a.timeout_us * interval '1 microsecond' AS timeout,
        clock_timestamp() AS now, q.id IS NULL AS gone, coalesce(q.expires_at <= clock_timestamp(), false) AS expired,
        CASE WHEN a.timeout_us IS NULL THEN coalesce(q.call_data, '{}') END AS call_data,
        ` + CreatedAtSQL + ` AS created_at, q.failed_count, q.max_attempts
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @epochs::text[], @timeouts::bigint[])
        AS a (call_id, attempt, token, epoch, timeout_us)
    LEFT JOIN call_queue q ON q.id BETWEEN a.call_id AND a.call_id AND q.attempts = a.attempt AND q.status = 'dispatched'
    ORDER BY a.call_id
), started AS (
    UPDATE call_open o
    SET token      = a.token,
        worker     = @worker,
        started_at = coalesce(o.started_at, greatest(a.now, o.claimed_at)),
        deadline   = coalesce(o.deadline, greatest(a.now, o.claimed_at) + interval '1 second'
            + coalesce(a.timeout, (SELECT timeout FROM call_queues WHERE name = o.queue), ` + defaultTimeoutSQL + `))
    FROM asked a
    WHERE o.call_id BETWEEN a.call_id AND a.call_id AND NOT a.gone AND NOT a.expired
      AND o.attempt = a.attempt
      AND o.epoch = (SELECT callq_epoch()) AND a.epoch IN ('', o.epoch)
      AND (SELECT set_config('synchronous_commit', 'on', true)) = 'on'
      AND (SELECT set_config('lock_timeout', '100ms', true)) = '100ms'
      AND (o.token = a.token
           OR o.token IS NULL AND o.start_by > clock_timestamp())
    RETURNING o.call_id, o.token, o.started_at, o.deadline, o.send_within, o.queue, o.task, o.key, o.cost, o.limits, o.keys,
        a.wanted, a.call_data, a.created_at, a.failed_count, a.max_attempts
)
SELECT q.call_id, q.token, q.started_at, q.send_within, false AS gone, false AS expired, q.wanted,
    q.queue, q.task, q.key, q.cost, q.call_data, q.created_at, q.failed_count,` + PolicySQL + `,
    q.deadline - q.started_at - interval '1 second',
    q.limits, q.keys,
    q.limits <> '{}' AND EXISTS (SELECT FROM call_limits l WHERE l.name = ANY(q.limits) AND l.window_size = '0')
FROM started q
LEFT JOIN LATERAL (SELECT * FROM call_queues WHERE name = q.queue LIMIT 1) r ON true
UNION ALL
SELECT call_id, token, NULL, NULL, gone, expired, false, '', '', '', 0, NULL, 'epoch', 0, 0, '0', '0', '0', '{}', '{}', false
FROM asked a
WHERE (gone OR expired) AND EXISTS (SELECT FROM call_open o WHERE o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt)`
