package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Paused is a queue or a limit that is paused: nothing of it may be claimed. With a key, only that key is paused.
type Paused struct {
	What   string // "queue" or "limit"
	Name   string
	Key    string
	Until  *time.Time     // by Postgres's clock; nil: For, or until it is resumed
	For    *time.Duration // from now; nil: Until
	Reason string
	By     string
	// Extend keeps a pause that lasts longer, and does not audit each extension.
	Extend bool
}

// ErrUnknown: there is no such queue or limit.
var ErrUnknown = errors.New("there is no such queue or limit")

// Pause stops claims, and then recalls the claimed attempts that have not started. Once it returns, nothing starts that was
// not running. It returns how many attempts it recalled. After an error of the recall, which waits for locks, claims stay
// stopped.
func Pause(ctx context.Context, pool *pgxpool.Pool, p Paused) (recalled int, err error) {
	written, extended := true, false
	err = readCommitted(ctx, pool, func(tx pgx.Tx) error {
		if err := lockRule(ctx, tx, p.What, p.Name); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, pauseSQL, pgx.StrictNamedArgs{
			"what": p.What, "name": p.Name, "key": p.Key, "until": p.Until, "for": p.For,
			"reason": p.Reason, "by": p.By, "extend": p.Extend,
		}).Scan(&extended)
		if written = !errors.Is(err, pgx.ErrNoRows); !written {
			return nil
		}
		if err == nil && !(extended && p.Extend) {
			_, err = tx.Exec(ctx, AuditSQL, p.By, p.What, p.Name, p.change())
		}
		return err
	})
	if err == nil && written {
		u := Unstarted{Limit: p.Name, Key: p.Key}
		if p.What == "queue" {
			u = Unstarted{Queues: []string{p.Name}, Key: p.Key}
		}
		err = readCommitted(ctx, pool, func(tx pgx.Tx) (err error) {
			recalled, err = Recall(ctx, tx, u, "it was paused: "+p.Reason)
			return err
		})
	}
	return recalled, wrap(fmt.Sprintf("pause %s %q", p.What, p.Name), err)
}

// readCommitted runs a transaction that sees what a claim commits while it waits for the claim's lock.
func readCommitted(ctx context.Context, pool *pgxpool.Pool, run func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, run)
}

// change is the pause in the audit's words.
func (p Paused) change() string {
	until := ""
	if p.Until != nil {
		until = " until " + p.Until.UTC().Format(time.RFC3339)
	} else if p.For != nil {
		until = " for " + p.For.String()
	}
	return "paused" + forKey(p.Key) + until + ": " + p.Reason
}

func forKey(key string) string {
	if key == "" {
		return ""
	}
	return " for key " + key
}

// pauseSQL returns whether it extends a pause that still lasts, and no row if it leaves a longer one.
const pauseSQL = `
WITH lasting AS (
    SELECT FROM call_pauses WHERE what = @what AND name = @name AND key = @key AND until > clock_timestamp()
)
INSERT INTO call_pauses AS p (what, name, key, until, reason, at, by)
VALUES (@what, @name, @key, coalesce(@until::timestamptz, clock_timestamp() + @for::interval, 'infinity'), @reason, clock_timestamp(), @by)
ON CONFLICT (what, name, key) DO UPDATE
SET until = excluded.until, reason = excluded.reason, at = excluded.at, by = excluded.by
WHERE NOT @extend OR p.until < excluded.until
RETURNING EXISTS (SELECT FROM lasting)`

// Resume ends a pause, and reports whether there was one. A pause of one key and a pause of all keys are independent.
func Resume(ctx context.Context, pool *pgxpool.Pool, what, name, key, by string) (was bool, err error) {
	err = readCommitted(ctx, pool, func(tx pgx.Tx) error {
		if err := lockRule(ctx, tx, what, name); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `DELETE FROM call_pauses WHERE what = $1 AND name = $2 AND key = $3`, what, name, key)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		was = true
		if _, err := tx.Exec(ctx, AuditSQL, by, what, name, "resumed"+forKey(key)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, wakeSQL, what, name, key)
		return err
	})
	return was, wrap(fmt.Sprintf("resume %s %q", what, name), err)
}

// wakeSQL wakes the dispatchers, and the key's flows, which may have been parked while it was paused (internal/backlog).
const wakeSQL = `
WITH woken AS (
    INSERT INTO call_inbox (queue, at, key)
    SELECT queue, clock_timestamp(), $3
    FROM (
        SELECT $2 AS queue WHERE $1 = 'queue'
        UNION ALL
        SELECT unnest(queues) FROM call_limits WHERE $1 = 'limit' AND name = $2
    ) q
    WHERE $3 <> ''
)
SELECT pg_notify('` + callqueue.WakeChannel + `', '')`

// AuditSQL records who changed what, and how.
const AuditSQL = `INSERT INTO call_audit (at, by, what, name, change) VALUES (clock_timestamp(), $1, $2, $3, $4)`

// lockRule takes the lock that claims take, so that each claim comes before or after.
func lockRule(ctx context.Context, tx pgx.Tx, what, name string) error {
	sql := `SELECT FROM call_queues WHERE name = $1 FOR NO KEY UPDATE`
	if what == "limit" {
		sql = `SELECT FROM call_limits WHERE name = $1 AND cardinality(queues) > 0 FOR NO KEY UPDATE`
	}
	tag, err := tx.Exec(ctx, sql, name)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrUnknown
	}
	return err
}

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
