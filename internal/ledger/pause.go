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
// stopped. Its transactions are READ COMMITTED, to see what a claim commits while they wait for its lock.
func Pause(ctx context.Context, pool *pgxpool.Pool, p Paused) (recalled int, err error) {
	paused := false
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := lockRule(ctx, tx, p.What, p.Name); err != nil {
			return err
		}
		var active bool
		if err := tx.QueryRow(ctx, isPausedSQL, p.What, p.Name, p.Key).Scan(&active); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, pauseSQL, pgx.StrictNamedArgs{
			"what": p.What, "name": p.Name, "key": p.Key, "until": p.Until, "for": p.For,
			"reason": p.Reason, "by": p.By, "extend": p.Extend,
		})
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if !active || !p.Extend {
			if _, err := tx.Exec(ctx, AuditSQL, p.By, p.What, p.Name, pauseText(p)); err != nil {
				return err
			}
		}
		paused = true
		return nil
	})
	if err == nil && paused {
		u := Unstarted{Limit: p.Name, Key: p.Key}
		if p.What == "queue" {
			u = Unstarted{Queues: []string{p.Name}, Key: p.Key}
		}
		err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			recalled, err = Recall(ctx, tx, u, "it was paused: "+p.Reason)
			return err
		})
	}
	return recalled, wrap(fmt.Sprintf("pause %s %q", p.What, p.Name), err)
}

func pauseText(p Paused) string {
	text := "paused"
	if p.Key != "" {
		text += " for key " + p.Key
	}
	switch {
	case p.Until != nil:
		text += " until " + p.Until.UTC().Format(time.RFC3339)
	case p.For != nil:
		text += " for " + p.For.String()
	}
	return text + ": " + p.Reason
}

const isPausedSQL = `
SELECT EXISTS (SELECT FROM call_pauses WHERE what = $1 AND name = $2 AND key = $3 AND until > clock_timestamp())`

const pauseSQL = `
INSERT INTO call_pauses AS p (what, name, key, until, reason, at, by)
VALUES (@what, @name, @key, coalesce(@until::timestamptz, clock_timestamp() + @for::interval, 'infinity'), @reason, clock_timestamp(), @by)
ON CONFLICT (what, name, key) DO UPDATE
SET until = excluded.until, reason = excluded.reason, at = excluded.at, by = excluded.by
WHERE NOT @extend OR p.until < excluded.until`

// Resume ends a pause, and reports whether there was one. A pause of one key and a pause of all keys are independent.
func Resume(ctx context.Context, pool *pgxpool.Pool, what, name, key, by string) (bool, error) {
	was := false
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := lockRule(ctx, tx, what, name); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, resumeSQL, what, name, key)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		was = true
		text := "resumed"
		if key != "" {
			text += " for key " + key
		}
		if _, err := tx.Exec(ctx, AuditSQL, by, what, name, text); err != nil {
			return err
		}
		if key != "" {
			if _, err := tx.Exec(ctx, wakeKeySQL, what, name, key); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, wakeSQL)
		return err
	})
	return was, wrap(fmt.Sprintf("resume %s %q", what, name), err)
}

const resumeSQL = `DELETE FROM call_pauses WHERE what = $1 AND name = $2 AND key = $3`

// wakeKeySQL wakes the key's flows, which may have been parked while it was paused (internal/backlog).
const wakeKeySQL = `
INSERT INTO call_inbox (queue, at, key)
SELECT queue, clock_timestamp(), $3
FROM (
    SELECT $2 AS queue WHERE $1 = 'queue'
    UNION ALL
    SELECT unnest(queues) FROM call_limits WHERE $1 = 'limit' AND name = $2
) q`

const wakeSQL = `SELECT pg_notify('` + callqueue.WakeChannel + `', '')`

// AuditSQL records who changed what, and how.
const AuditSQL = `INSERT INTO call_audit (at, by, what, name, change) VALUES (clock_timestamp(), $1, $2, $3, $4)`

// lockRule takes the lock that claims take, so that each claim comes before or after.
func lockRule(ctx context.Context, tx pgx.Tx, what, name string) error {
	sql := lockQueueSQL
	if what == "limit" {
		sql = lockLimitSQL
	}
	tag, err := tx.Exec(ctx, sql, name)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrUnknown
	}
	return err
}

const lockQueueSQL = `SELECT FROM call_queues WHERE name = $1 FOR NO KEY UPDATE`

const lockLimitSQL = `SELECT FROM call_limits WHERE name = $1 AND cardinality(queues) > 0 FOR NO KEY UPDATE`
