package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Paused is a queue or a limit that is paused: nothing of it may be claimed. With a key, only that key is paused.
type Paused struct {
	What  string // "queue" or "limit"
	Name  string
	Key   string
	Until *time.Time     // by Postgres's clock; nil: For, or until it is resumed
	For   *time.Duration // from now; nil: Until
	Author
}

// Author is who changes something, for the audit.
type Author struct {
	By     string
	Reason string
	Token  *string // of the form that asked for it, which does so once; nil: there was none
}

// By is an author who gives no reason.
func By(name string) Author { return Author{By: name} }

// ErrUnknown: there is no such queue or limit.
var ErrUnknown = errors.New("there is no such queue or limit")

// Pause stops claims, and then recalls the claimed attempts that have not started, and returns how many. Once it returns,
// nothing starts that was not running. After an error of the recall, which waits for locks, claims stay stopped.
func Pause(ctx context.Context, pool schema.DB, p Paused) (recalled int, err error) {
	_, err = underLock(ctx, pool, p.What, p.Name, pauseSQL, pgx.StrictNamedArgs{
		"what": p.What, "name": p.Name, "key": p.Key, "until": p.Until, "for": p.For,
		"reason": p.Reason, "by": p.By, "token": p.Token,
	})
	if err == nil {
		err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			recalled, err = Recall(ctx, tx, p.What, []string{p.Name}, p.Key, "it was paused: "+p.Reason)
			if err == nil {
				_, err = tx.Exec(ctx, AwaitAheadSQL, limit.AheadMost)
			}
			return err
		})
	}
	return recalled, Wrap(fmt.Sprintf("pause %s %q", p.What, p.Name), err)
}

// AwaitAheadSQL waits until what was claimed ahead starts: a fifth of a second at most.
const AwaitAheadSQL = `
SELECT pg_sleep_for(max(greatest(claimed_at, started_at)) - clock_timestamp() + interval '1 us')
FROM callq.call_open
WHERE greatest(claimed_at, started_at) BETWEEN clock_timestamp() AND clock_timestamp() + $1::interval`

// pauseSQL takes the place of a closing by the API, too: it ends without a probe.
const pauseSQL = `
WITH paused AS (
    INSERT INTO callq.call_pauses AS p (what, name, key, until, reason, at, by)
    VALUES (@what, @name, @key, coalesce(@until::timestamptz, clock_timestamp() + @for::interval, 'infinity'),
        @reason, clock_timestamp(), @by)
    ON CONFLICT (what, name, key) DO UPDATE
    SET until = excluded.until, reason = excluded.reason, at = excluded.at, by = excluded.by,
        spell = NULL, call_id = NULL, attempt = NULL, probed_at = NULL
    RETURNING what, until
), audited AS (
    INSERT INTO callq.call_audit (at, by, what, name, change, reason, token)
    SELECT clock_timestamp(), @by, what, @name, 'paused' || ` + forKeySQL + ` || CASE WHEN isfinite(until) THEN
        to_char(until AT TIME ZONE 'UTC', ' "until" YYYY-MM-DD"T"HH24:MI:SS"Z"') ELSE '' END, @reason, @token
    FROM paused
)
SELECT FROM paused`

const forKeySQL = `CASE WHEN @key <> '' THEN ' for key ' || @key ELSE '' END`

// Resume ends a pause, and reports whether there was one. A pause of one key and a pause of all keys are independent.
func Resume(ctx context.Context, pool schema.DB, what, name, key string, who Author) (was bool, err error) {
	was, err = underLock(ctx, pool, what, name, resumeSQL, pgx.StrictNamedArgs{
		"what": what, "name": name, "key": key, "by": who.By, "reason": who.Reason, "token": who.Token,
	})
	return was, Wrap(fmt.Sprintf("resume %s %q", what, name), err)
}

// resumeSQL wakes the dispatchers, and the key's flows, which may have been parked while it was paused (internal/backlog).
const resumeSQL = `
WITH resumed AS (
    DELETE FROM callq.call_pauses WHERE what = @what AND name = @name AND key = @key RETURNING what, name, key
), audited AS (
    INSERT INTO callq.call_audit (at, by, what, name, change, reason, token)
    SELECT clock_timestamp(), @by, what, name, 'resumed' || ` + forKeySQL + `, @reason, @token FROM resumed
), woken AS (
    INSERT INTO callq.call_inbox (queue, at, key)
    SELECT q.queue, clock_timestamp(), r.key
    FROM resumed r
    CROSS JOIN LATERAL (
        SELECT r.name AS queue WHERE r.what = 'queue'
        UNION ALL
        SELECT unnest(queues) FROM callq.call_limits WHERE r.what = 'limit' AND name = r.name
    ) q
    WHERE r.key <> ''
)
SELECT pg_notify('` + callqueue.WakeChannel + `', '') FROM resumed`

// Audit records who changed what, how, and why.
func Audit(b *pgx.Batch, who Author, what, name, change string) {
	b.Queue(auditSQL, who.By, what, name, change, who.Reason, who.Token)
}

const auditSQL = `
INSERT INTO callq.call_audit (at, by, what, name, change, reason, token) VALUES (clock_timestamp(), $1, $2, $3, $4, $5, $6)`

// underLock runs a statement under the lock that claims take, and reports whether it returned a row. It sees what a claim
// commits while it waits for the lock.
func underLock(ctx context.Context, pool schema.DB, what, name, sql string, args pgx.StrictNamedArgs) (row bool, err error) {
	lock := `SELECT FROM callq.call_queues WHERE name = $1 FOR NO KEY UPDATE`
	if what == "limit" {
		lock = `SELECT FROM callq.call_limits WHERE name = $1 AND cardinality(queues) > 0 FOR NO KEY UPDATE`
	}
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, lock, name)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return ErrUnknown
		}
		tag, err = tx.Exec(ctx, sql, args)
		row = tag.RowsAffected() > 0
		return err
	})
	return row, err
}

// Recall closes attempts that have not started, unsent: their calls wait again. It returns how many. They are of some queues
// or limits, by what, and of one key unless that is "". The caller holds their locks, or has paused them, so no claim
// opens others meanwhile. Recall waits for the attempts' locks, until it knows whether a start has happened.
func Recall(ctx context.Context, tx pgx.Tx, what string, names []string, key, why string) (int, error) {
	rows, _ := tx.Query(ctx, recallSQL, what, names, key) // CollectRows returns its error
	closings, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Closing, error) {
		c := Closing{
			Unstarted: true, Outcome: callqueue.OutcomeNotSent, Status: callqueue.StatusNew, Error: "not sent: recalled, for " + why,
		}
		return c, row.Scan(&c.CallID, &c.Attempt)
	})
	if err != nil || len(closings) == 0 {
		return 0, Wrap("recall unstarted attempts", err)
	}
	closed, err := new(Closer).close(ctx, tx, closings, nil, "0")
	return len(closed), Wrap("recall unstarted attempts", err)
}

const recallSQL = `
SELECT call_id, attempt FROM callq.call_open
WHERE started_at IS NULL AND epoch = (SELECT callq.epoch())
  AND CASE $1 WHEN 'queue' THEN queue = ANY($2::text[]) ELSE limits && $2::text[] END AND ($3 = '' OR key = $3)
ORDER BY call_id
FOR UPDATE`
