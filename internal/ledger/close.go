package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Closing ends an attempt.
type Closing struct {
	CallID  int64
	Attempt int32
	// Token is the one it was started with. Unstarted lets it also be closed while nobody has
	// started it; with Token 0 only then.
	Token     int64
	Unstarted bool

	Outcome  callqueue.Outcome
	Error    string          // why it did not end well; goes to the call's error_message too
	Result   json.RawMessage // nil: none
	Requests *int16          // requests that the write gate let through; nil: not seen
	// Settled is what limits that count cost are charged instead of the claimed cost, where anything is
	// charged; nil: that cost.
	Settled *int64
	// Arrival bounds when the request reached the API, as offsets from the start (from the claim
	// where none is recorded). Nil: it was provably never sent, so nothing is charged.
	Arrival *limit.Arrival

	// What becomes of the call, unless it has moved on.
	Status callqueue.Status
	Failed bool           // counts in failed_count
	Delay  *time.Duration // until it may be claimed again; nil: run_at stays as it is

	// For whoever wakes the dispatchers, which Close does not.
	Frees bool // they may wait for its end
	Saves bool // it is charged less than was claimed
}

// Close ends attempts: in one statement each open row goes, its ledger row is written, its limits
// are charged, under what they were claimed, and its call moves on. It returns the ids of those
// it closed; the others had been closed before or belong to another token, which is an answer,
// not an error. An error leaves unknown which are closed; closing again is safe.
func Close(ctx context.Context, db DB, closings []Closing) ([]int64, error) {
	return closeWaiting(ctx, db, "100ms", closings)
}

// closeWaiting is Close that waits so long for each lock, "0" being for ever.
func closeWaiting(ctx context.Context, db DB, wait string, closings []Closing) ([]int64, error) {
	args := closeArgs(closings, wait)
	closed, err := queryIDs(ctx, db, closeSQL, args)
	if idsUsedTwice(err) {
		if _, err := queryIDs(ctx, db, setAsideSQL, args["ids"]); err != nil {
			return nil, fmt.Errorf("set attempts of former calls aside: %w", err)
		}
		closed, err = queryIDs(ctx, db, closeSQL, args)
	}
	if err != nil {
		return nil, fmt.Errorf("close attempts: %w", err)
	}
	return closed, nil
}

func queryIDs(ctx context.Context, db DB, sql string, args ...any) ([]int64, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// idsUsedTwice says that the ledger knows attempts of a former call of the same id: call_queue was truncated
// and its ids begun anew, or a call was deleted and inserted again.
func idsUsedTwice(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "23505" && pg.TableName == "call_attempts"
}

// Attempts of a former call are numbered from 0 down: they stay charged, and are none of the call's that is there.
const setAsideSQL = `
WITH former AS (
    SELECT a.call_id, a.attempt, least((SELECT min(attempt) FROM call_attempts WHERE call_id = a.call_id), 1)
        - row_number() OVER (PARTITION BY a.call_id ORDER BY a.attempt DESC) AS becomes
    FROM call_open o JOIN call_attempts a ON a.call_id = ANY (ARRAY[o.call_id]) AND a.attempt >= o.attempt
    WHERE o.call_id = ANY($1::bigint[])
)
UPDATE call_attempts a SET attempt = f.becomes FROM former f WHERE a.call_id = ANY (ARRAY[f.call_id]) AND a.attempt = f.attempt
RETURNING a.call_id`

// closeArgs are the closings by column, as closeSQL unnests them.
func closeArgs(closings []Closing, wait string) pgx.StrictNamedArgs {
	arrival := func(of func(limit.Arrival) *time.Duration) []*int64 {
		return column(closings, func(c Closing) *int64 {
			if c.Arrival == nil {
				c.Arrival = &limit.Arrival{}
			}
			return micros(of(*c.Arrival))
		})
	}
	return pgx.StrictNamedArgs{
		"wait":      wait,
		"ids":       column(closings, func(c Closing) int64 { return c.CallID }),
		"attempts":  column(closings, func(c Closing) int32 { return c.Attempt }),
		"tokens":    column(closings, func(c Closing) *int64 { return nonZero(c.Token) }),
		"unstarted": column(closings, func(c Closing) bool { return c.Unstarted }),
		"outcomes":  column(closings, func(c Closing) string { return string(c.Outcome) }),
		"errors":    column(closings, func(c Closing) *string { return nonZero(c.Error) }),
		"results":   column(closings, func(c Closing) *string { return nonZero(string(c.Result)) }),
		"requests":  column(closings, func(c Closing) *int16 { return c.Requests }),
		"settled":   column(closings, func(c Closing) *int64 { return c.Settled }),
		"statuses":  column(closings, func(c Closing) string { return string(c.Status) }),
		"failed":    column(closings, func(c Closing) bool { return c.Failed }),
		"delay":     column(closings, func(c Closing) *int64 { return micros(c.Delay) }),
		"charged":   column(closings, func(c Closing) bool { return c.Arrival != nil }),
		"by":        arrival(func(a limit.Arrival) *time.Duration { return a.By }),
		"written":   arrival(func(a limit.Arrival) *time.Duration { return &a.Written }),
		"end_by":    arrival(func(a limit.Arrival) *time.Duration { return a.EndBy }),
		"closed":    arrival(func(a limit.Arrival) *time.Duration { return &a.Closed }),
		"acked":     arrival(func(a limit.Arrival) *time.Duration { return a.Acked }),
	}
}

func nonZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// closeSQL waits no longer than @wait for a row: what else is in the statement waits with it. It takes the locks of the open rows in id order (asked's, by which each is found), then of their
// calls, then of its own connection's usage rows. A batch may name an attempt twice; one of the two
// closes it. until is limit.Arrival.Until's formula; usage buckets are at most W/200 and labelled with their
// end (date_bin rounds down, so one is added; none where the charge is over already). Whenever a
// request's last byte was written, its first was within send_within, by the gate. Unstarted rows of an
// older epoch are not closed uncharged: the former server may have started them. A concurrency limit
// (W = 0) counts a call until its end, as the ledger has it, or, without an answer, until the API must have
// seen the connection go. An attempt without limits keeps a bound that holds for any slack, should a
// limit be added later. A call that was cancelled while the attempt ran stays cancelled, and learns how
// that ended. A limit that counts cost is charged what was settled: it was claimed by cost where that is
// not 1, and where it is 1 the limit counts now as it says (open.go does not tell those apart either).
// After a failover what is charged ends in other buckets than what was charged before, and in shards below 0 where it
// was open then (dispatcher/epoch.go).
// Where units of a key came free sooner than could be foreseen, its lines are woken (internal/backlog); that
// the call itself waits again is its trigger's to say.
const closeSQL = `
WITH asked AS MATERIALIZED (
    SELECT *
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @unstarted::bool[],
            @outcomes::text[], @errors::text[], @results::text[], @requests::smallint[], @settled::bigint[],
            @charged::bool[], @by::bigint[], @written::bigint[], @end_by::bigint[], @closed::bigint[], @acked::bigint[],
            @statuses::text[], @failed::bool[], @delay::bigint[])
        AS c (call_id, attempt, token, unstarted, outcome, error, result, requests, settled,
            charged, by_us, written_us, end_by_us, closed_us, acked_us, status, failed, delay_us)
    ORDER BY call_id
), gone AS (
    DELETE FROM call_open o
    USING asked c
    WHERE o.call_id BETWEEN c.call_id AND c.call_id AND o.attempt = c.attempt
      AND (o.token = c.token OR o.token IS NULL AND c.unstarted AND (c.charged OR o.epoch = (SELECT callq_epoch())))
      AND (SELECT set_config('lock_timeout', @wait, true)) = @wait
    RETURNING o.call_id, o.attempt, o.cost, o.claimed_at, o.started_at, o.queue, o.task, o.key, o.worker,
        o.limits, o.keys, o.costs, o.epoch, o.send_within, o.acked_at, clock_timestamp() AS now, coalesce(o.started_at, o.claimed_at) AS base,
        c.outcome, c.error, c.result, c.requests, CASE WHEN c.charged THEN c.settled END AS settled, c.charged, c.status, c.failed,
        c.by_us, c.written_us, c.end_by_us, c.closed_us, c.acked_us, c.delay_us
), bounded AS (
    SELECT *,
        delay_us * interval '1 microsecond' AS delay,
        base + by_us * interval '1 microsecond' AS by,
        base + least(written_us * interval '1 microsecond', CASE WHEN started_at IS NOT NULL THEN send_within END) AS written,
        base + end_by_us * interval '1 microsecond' AS end_by,
        base + closed_us * interval '1 microsecond' AS closed,
        coalesce(acked_at, base + acked_us * interval '1 microsecond') AS acked
    FROM gone
), ended AS MATERIALIZED (
    SELECT b.*, u.until, u.names, u.charged_keys, u.charged_costs, u.buckets, u.charges,
        u.former OR b.outcome = 'lost' AND b.epoch <> (SELECT callq_epoch()) AS former
    FROM bounded b
    LEFT JOIN LATERAL (
        SELECT max(until) AS until,
            array_agg(name) AS names, array_agg(key) AS charged_keys, array_agg(cost) AS charged_costs,
            bool_or(former) AS former,
            array_agg(CASE WHEN width > '0' THEN date_bin(width, greatest(until, CASE WHEN NOT former THEN known_at + width END), 'epoch') + width
                WHEN until > b.now THEN until END) AS buckets,
            jsonb_agg(jsonb_build_object('limit', name, 'key', key, 'cost', cost, 'until', until)) AS charges
        FROM (
            SELECT l.name, u.key, CASE WHEN l.count_cost OR u.cost <> 1 THEN coalesce(b.settled, u.cost) ELSE u.cost END AS cost,
                coalesce(l.bucket_width, l.window_size / 200) AS width, l.known_at, b.epoch <> l.epoch AS former,
                CASE
                WHEN l.window_size > '0' THEN
                    CASE coalesce(l.anchor, CASE b.task WHEN 'http' THEN 'start' ELSE 'finish' END)
                    WHEN 'start' THEN
                        CASE WHEN b.acked IS NULL THEN coalesce(b.by, least(b.closed, b.written + interval '5 seconds') + l.slack)
                        ELSE least(b.by, greatest(b.acked, b.written + l.slack)) END
                    ELSE
                        CASE WHEN b.end_by IS NOT NULL AND b.acked IS NULL THEN b.end_by
                        ELSE least(b.end_by, greatest(b.acked, b.closed + l.slack)) END
                    END
                WHEN b.end_by IS NULL THEN greatest(b.now, b.closed + l.slack)
                ELSE b.now END AS until
            FROM unnest(b.limits, b.keys, b.costs) AS u (name, key, cost)
            JOIN call_limits l ON l.name BETWEEN u.name AND u.name
            WHERE b.charged AND b.limits <> '{}'
        ) c
    ) u ON true
), call AS (
    UPDATE call_queue q
    SET status        = CASE q.status WHEN 'dispatched' THEN e.status ELSE q.status END,
        failed_count  = q.failed_count + (e.failed AND q.failed_count < 2147483647)::int,
        error_message = e.error,
        run_at        = CASE WHEN e.delay IS NULL OR q.status <> 'dispatched' THEN q.run_at ELSE e.now + e.delay END,
        finished_at   = CASE WHEN e.status = 'new' THEN q.finished_at ELSE e.now END,
        failed_at     = CASE WHEN e.status = 'failed' AND q.status = 'dispatched' THEN e.now ELSE q.failed_at END,
        unique_key    = CASE WHEN e.status IN ('new', 'error') THEN q.unique_key END
    FROM ended e
    WHERE q.id BETWEEN e.call_id AND e.call_id AND q.attempts = e.attempt AND q.status IN ('dispatched', 'cancelled')
), charged AS (
    INSERT INTO call_usage AS u (limit_name, key, bucket, shard, used)
    SELECT c.name, c.key, c.bucket, CASE WHEN e.former THEN -1 ELSE 1 END * pg_backend_pid(), sum(c.cost)
    FROM ended e
    CROSS JOIN LATERAL unnest(e.names, e.charged_keys, e.charged_costs, e.buckets) AS c (name, key, cost, bucket)
    WHERE e.names IS NOT NULL AND c.bucket IS NOT NULL AND c.cost > 0
    GROUP BY 1, 2, 3, 4
    ORDER BY 1, 2, 3, 4
    ON CONFLICT (limit_name, key, bucket, shard) DO UPDATE SET used = u.used + excluded.used
), freed AS (
    INSERT INTO call_inbox (queue, at, key)
    SELECT queue, clock_timestamp(), key
    FROM (
        SELECT DISTINCT u.key,
            unnest((SELECT queues FROM call_limits
                WHERE name = u.name AND per_key AND (NOT g.charged OR window_size = '0' OR count_cost AND g.settled < g.cost))) AS queue
        FROM gone g
        CROSS JOIN LATERAL unnest(g.limits, g.keys) AS u (name, key)
    ) f
)
INSERT INTO call_attempts (call_id, attempt, requests, cost, settled, claimed_at, started_at, arrived_by, finished_at,
    outcome, queue, task, key, worker, error, charged, result)
SELECT e.call_id, e.attempt, e.requests, e.cost, e.settled, e.claimed_at, e.started_at,
    CASE WHEN e.charged THEN coalesce(e.until, least(e.end_by, greatest(e.written, e.closed) + interval '1 minute')) END,
    e.now, e.outcome, e.queue, e.task, e.key, e.worker, e.error, coalesce(e.charges, '[]'), e.result::jsonb
FROM ended e
RETURNING call_id`

// CutQueueSQL is the queue of a call q whose row is written when the call ends. A name that is too long for an index, from
// before such were refused, is cut.
const CutQueueSQL = `CASE WHEN octet_length(q.queue) > 255 THEN left(q.queue, 63) ELSE q.queue END`
