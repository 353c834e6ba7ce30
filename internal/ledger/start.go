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
	Timeout time.Duration // how long the handler may take
}

// StartAnswer says what became of a StartRequest.
type StartAnswer struct {
	CallID int64 `db:"call_id"`
	Token  int64 `db:"token"`
	// StartedAt is Postgres's clock inside the start; zero: not started, and it never will be for
	// this token.
	StartedAt *time.Time `db:"started_at"`
	// SendWithin is how long after asking the request may be written; nil: no limit asks.
	SendWithin *time.Duration `db:"send_within"`
	// Gone: the attempt is open but its call was deleted or cancelled; close it unsent.
	Gone bool `db:"gone"`
}

// Start starts attempts, each by a compare-and-set on its open row, locked in id order; it is
// durable when it returns. An error leaves unknown what has started: ask again with the same
// tokens. Answers come in the requests' order.
func Start(ctx context.Context, db DB, worker string, requests []StartRequest) ([]StartAnswer, error) {
	ids, attempts := make([]int64, len(requests)), make([]int32, len(requests))
	tokens, timeouts := make([]int64, len(requests)), make([]int64, len(requests))
	for i, r := range requests {
		ids[i], attempts[i], tokens[i] = r.CallID, r.Attempt, r.Token
		timeouts[i] = ceilMicros(r.Timeout)
	}
	rows, err := db.Query(ctx, startSQL, pgx.StrictNamedArgs{
		"ids": ids, "attempts": attempts, "tokens": tokens, "timeouts": timeouts, "worker": worker,
	})
	if err != nil {
		return nil, fmt.Errorf("start attempts: %w", err)
	}
	known, err := pgx.CollectRows(rows, pgx.RowToStructByName[StartAnswer])
	if err != nil {
		return nil, fmt.Errorf("start attempts: %w", err)
	}
	type asked struct{ callID, token int64 }
	byAsked := make(map[asked]StartAnswer, len(known))
	for _, k := range known {
		byAsked[asked{k.CallID, k.Token}] = k
	}
	answers := make([]StartAnswer, len(requests))
	for i, r := range requests {
		answers[i] = byAsked[asked{r.CallID, r.Token}] // zero where neither started nor gone
		answers[i].CallID, answers[i].Token = r.CallID, r.Token
	}
	return answers, nil
}

// asked finds each row by its id, in id order, and so the rows are locked in that order; it carries what
// the rest needs: to join two lists of a batch's size is quadratic where Settings leave only nested
// loops. The epoch is read once, for each reading opens a file.
//
// The conditions stand on call_open's own columns, for only those are read again after a wait
// for a lock. A row that already carries the token keeps its first started_at. One batch may ask
// for an attempt twice, when Redis delivered it twice: only the token that the row took counts.
// A start is never earlier than its claim, though the clock may have been set back in between.
// The commit waits for the disk, whatever the server or the worker's own pool is set to.
const startSQL = `
WITH asked AS MATERIALIZED (
    SELECT a.call_id, a.attempt, a.token, a.timeout_us * interval '1 microsecond' AS timeout, q.id IS NULL AS gone
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @timeouts::bigint[])
        AS a (call_id, attempt, token, timeout_us)
    LEFT JOIN call_queue q ON q.id = a.call_id AND q.attempts = a.attempt AND q.status = 'dispatched'
    ORDER BY a.call_id
), started AS (
    UPDATE call_open o
    SET token      = a.token,
        worker     = @worker,
        started_at = coalesce(o.started_at, greatest(clock_timestamp(), o.claimed_at)),
        deadline   = coalesce(o.deadline, greatest(clock_timestamp(), o.claimed_at) + a.timeout + interval '1 second')
    FROM asked a
    WHERE o.call_id = a.call_id AND NOT a.gone
      AND o.attempt = a.attempt
      AND o.epoch = (SELECT callq_epoch())
      AND (SELECT set_config('synchronous_commit', 'on', true)) = 'on'
      AND (o.token = a.token
           OR o.token IS NULL AND o.start_by > clock_timestamp()
              AND (o.not_before IS NULL OR o.not_before <= clock_timestamp()))
    RETURNING o.call_id, o.token, o.started_at, o.send_within
)
SELECT call_id, token, started_at, send_within, false AS gone FROM started
UNION ALL
SELECT call_id, token, NULL, NULL, true FROM asked a
WHERE gone AND EXISTS (SELECT FROM call_open o WHERE o.call_id = a.call_id AND o.attempt = a.attempt)`
