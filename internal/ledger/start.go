package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// StartRequest asks to start an attempt. The worker draws a token once per attempt that it runs. To ask again with the
// same token is safe, and gives the first answer.
type StartRequest struct {
	CallID  int64
	Attempt int32
	Token   int64
	// Epoch is the failover epoch in which the attempt was loaded: after a failover that lost calls, its id may be another
	// call's. "": nothing was loaded.
	Epoch string
	// Timeout is how long the handler may take. 0: the queue's timeout; the answer then has the Work.
	Timeout time.Duration
}

// StartAnswer answers a StartRequest.
type StartAnswer struct {
	CallID int64
	Token  int64
	// StartedAt is Postgres's clock at the start; nil: this token has not started it, and never will.
	StartedAt *time.Time
	// SendWithin is how long after asking the worker may write the request; nil: no limit bounds it.
	SendWithin *time.Duration
	// Gone: the attempt is open, but its call was deleted or cancelled. Close it unsent.
	Gone bool
	// Busy: another transaction has locked the attempt's row. Ask again, apart from others.
	Busy bool
	// Expired: the attempt is open, but its call has expired. Close it unsent.
	Expired bool
	// TooLarge: the attempt is open, but what its call has as call_data is too much. Close it as failed.
	TooLarge bool
	// Work is nil unless the attempt was started and the request had no Timeout.
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

// StartWithin is how long a claimed attempt may wait for its start, or until its queue's hours end, if that is sooner. Nothing
// starts after it: recovery closes the attempt unsent.
const StartWithin = 30 * time.Second

// CreatedAtSQL is created_at of a call q within what Go can read: one infinite time would spoil the statement.
const CreatedAtSQL = `least(greatest(coalesce(q.created_at, 'epoch'), timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 23:59:59.999999Z')`

// Start starts attempts, each by a compare-and-set on its open row, locked in id order. The starts are durable when it returns.
// Answers come in the requests' order. After an error it is unknown what has started: ask again with the same tokens. After
// an error that is [Busy] nothing has.
func Start(ctx context.Context, db DB, worker string, requests []StartRequest) ([]StartAnswer, error) {
	rows, err := db.Query(ctx, startSQL, pgx.StrictNamedArgs{
		"worker":   worker,
		"ids":      column(requests, func(r StartRequest) int64 { return r.CallID }),
		"attempts": column(requests, func(r StartRequest) int32 { return r.Attempt }),
		"tokens":   column(requests, func(r StartRequest) int64 { return r.Token }),
		"epochs":   column(requests, func(r StartRequest) string { return r.Epoch }),
		"timeouts": column(requests, func(r StartRequest) *int64 { return micros(nonZero(r.Timeout)) }),
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
		answers[i] = StartAnswer{CallID: r.CallID, Token: r.Token} // neither started, gone nor expired
		if k, ok := byAsked[asked{r.CallID, r.Token}]; ok {
			answers[i] = known[k]
		}
	}
	return answers, nil
}

// StartFree is Start for attempts whose rows nobody else has locked. It waits for none: the other answers are Busy.
func StartFree(ctx context.Context, db *pgxpool.Pool, worker string, requests []StartRequest) ([]StartAnswer, error) {
	id := func(r StartRequest) int64 { return r.CallID }
	var started []StartAnswer
	busy, err := onFree(ctx, db, false, requests, id, func(tx pgx.Tx, free []StartRequest) (err error) {
		started, err = Start(ctx, tx, worker, free)
		return err
	})
	if err != nil {
		return nil, err
	}
	answers := make([]StartAnswer, len(requests))
	for i, r := range requests {
		if slices.Contains(busy, r.CallID) {
			answers[i] = StartAnswer{CallID: r.CallID, Token: r.Token, Busy: true}
		} else {
			answers[i], started = started[0], started[1:]
		}
	}
	return answers, nil
}

// scanAnswer scans by position: to find twenty fields by name in each row is slow.
func scanAnswer(row pgx.CollectableRow) (StartAnswer, error) {
	var a StartAnswer
	var wanted bool
	var w Work
	err := row.Scan(&a.CallID, &a.Token, &a.StartedAt, &a.SendWithin, &a.Gone, &a.Expired, &a.TooLarge, &wanted,
		&w.Queue, &w.Task, &w.Key, &w.Cost, &w.Data, &w.CreatedAt, &w.FailedCount,
		&w.Policy.MaxAttempts, &w.Policy.BackoffMin, &w.Policy.BackoffMax, &w.Timeout, &w.Limits, &w.Keys, &w.Frees)
	if wanted {
		a.Work = &w
	}
	return a, err
}

// startSQL locks the open rows in id order, in which asked finds them. asked carries what the rest needs: to join two lists of a
// batch's size is quadratic under [Settings]. It reads the epoch once, for each reading opens a file.
//
// The conditions stand on call_open's own columns, because Postgres checks only those again after it waits for a lock. A row
// with the token keeps its first started_at and deadline; the answer's timeout is that deadline's. If Redis delivered an
// attempt twice, one batch may ask for it twice: the token that the row took counts.
//
// The clock is read after the worker has read its own, on which its bounds rest. A start is never earlier than its claim, even if the clock
// was set back in between. The commit waits for the disk, whatever the server or the worker's pool is set to. A queue
// that left the configuration has the defaults.
const startSQL = `
WITH asked AS MATERIALIZED (
    SELECT a.call_id, a.attempt, a.token, a.epoch, a.timeout_us IS NULL AS wanted,
        coalesce(a.timeout_us * interval '1 microsecond', ` + TimeoutSQL + `) AS timeout,
        clock_timestamp() AS now, q.id IS NULL AS gone, coalesce(q.expires_at <= clock_timestamp(), false) AS expired,
        CASE WHEN a.timeout_us IS NULL THEN ` + DataSQL + ` ELSE '' END AS data, most,
        ` + CreatedAtSQL + ` AS created_at, q.failed_count,` + PolicySQL + `
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @epochs::text[], @timeouts::bigint[])
        AS a (call_id, attempt, token, epoch, timeout_us)
    CROSS JOIN ` + MostSQL + `
    LEFT JOIN call_queue q ON q.id BETWEEN a.call_id AND a.call_id AND q.attempts = a.attempt AND q.status = 'dispatched'
    LEFT JOIN call_queues r ON r.name BETWEEN coalesce(q.queue, 'default') AND coalesce(q.queue, 'default')
    ORDER BY a.call_id
), started AS (
    UPDATE call_open o
    SET token      = a.token,
        worker     = @worker,
        started_at = coalesce(o.started_at, greatest(a.now, o.claimed_at)),
        deadline   = coalesce(o.deadline, greatest(a.now, o.claimed_at) + interval '1 second' + a.timeout)
    FROM asked a
    WHERE o.call_id BETWEEN a.call_id AND a.call_id AND NOT a.gone AND NOT a.expired AND octet_length(a.data) <= a.most
      AND o.attempt = a.attempt
      AND o.epoch = (SELECT callq_epoch()) AND a.epoch IN ('', o.epoch)
      AND (SELECT set_config('synchronous_commit', 'on', true)) = 'on'
      AND (SELECT set_config('lock_timeout', '100ms', true)) = '100ms'
      AND (o.token = a.token
           OR o.token IS NULL AND o.start_by > clock_timestamp())
    RETURNING o.call_id, o.token, o.started_at, o.send_within, a.wanted, o.queue, o.task, o.key, o.cost,
        a.data, a.created_at, a.failed_count, a.max_attempts, a.backoff_min, a.backoff_max,
        o.deadline - o.started_at - interval '1 second' AS timeout, o.limits, o.keys
)
SELECT call_id, token, started_at, send_within, false AS gone, false AS expired, false AS too_large, wanted,
    queue, task, key, cost, data, created_at, failed_count, max_attempts, backoff_min, backoff_max, timeout, limits, keys,
    limits <> '{}' AND EXISTS (SELECT FROM call_limits l WHERE l.name = ANY(limits) AND l.window_size = '0')
FROM started
UNION ALL
SELECT call_id, token, NULL, NULL, gone, expired, NOT gone AND NOT expired, false,
    '', '', '', 0, NULL, 'epoch', 0, 0, '0', '0', '0', '{}', '{}', false
FROM asked a
WHERE (gone OR expired OR data IS NULL OR octet_length(data) > most)
  AND EXISTS (SELECT FROM call_open o WHERE o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt)`
