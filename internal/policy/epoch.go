package policy

import (
	"context"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// A server that was promoted or restored may lack what its predecessor gave out last. So known charges count as usual, and the
// rest of the rate counts as used until nothing that is missing can count any more: docs/design.md, The failover epoch. A limit
// that is applied later bounded no call before, so it is closed for as long. The process that first sees the epoch writes down when that
// was. Late is safe.

// Epoch is a failover epoch, and what entering it did.
type Epoch struct {
	Verdict Verdict
	Why     string
	Judged  bool  // the verdict was given now
	Limits  int64 // that entered it now
	SeenAt  time.Time
	LivedAt *time.Time // the latest heartbeat of a former server that is here; nil: there is none
}

// EnterEpoch has all limits enter the current failover epoch, before anything is closed or claimed in it. The second that comes
// finds nothing to do. While the verdict is Waiting nothing has entered it: call EnterEpoch again, with how long it has been so.
// Attempts that are open go on if nothing is missing.
func EnterEpoch(ctx context.Context, pool schema.DB, failover Failover, asked time.Duration) (e Epoch, err error) {
	err = begin(ctx, pool, func(tx pgx.Tx) error {
		if err := lockLimits(ctx, tx, ` WHERE epoch <> callq.epoch()`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, noteEpochSQL); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, epochSQL).Scan(&e.Verdict, &e.Why, &e.SeenAt, &e.LivedAt); err != nil {
			return err
		}
		if e.Verdict == Waiting && failover != unsaid {
			return e.judge(ctx, tx, failover, asked)
		} else if e.Verdict == Waiting {
			return nil
		}
		return e.enter(ctx, tx, ` WHERE epoch <> callq.epoch()`)
	})
	return e, ledger.Wrap("enter the epoch", err)
}

// judge gives the verdict, if there is one, and enters the epoch by it.
func (e *Epoch) judge(ctx context.Context, tx pgx.Tx, failover Failover, asked time.Duration) error {
	rows, _ := tx.Query(ctx, testimonySQL, livesFor)
	t, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[testimony])
	if err != nil {
		return err
	}
	if e.Verdict, e.Why = failover.verdict(t, asked); e.Verdict == Waiting {
		return nil
	}
	e.Judged = true
	if _, err := tx.Exec(ctx, verdictSQL, e.Verdict, e.Why); err != nil {
		return err
	}
	if e.Verdict == Whole {
		if _, err := tx.Exec(ctx, adoptSQL, t.Former); err != nil {
			return err
		}
	}
	return e.enter(ctx, tx, ` WHERE epoch <> callq.epoch()`)
}

// enter has limits enter the epoch.
func (e *Epoch) enter(ctx context.Context, tx pgx.Tx, where string) error {
	sql := enterSQL
	if e.Verdict == Whole {
		sql = `UPDATE callq.call_limits SET epoch = callq.epoch()`
	}
	tag, err := tx.Exec(ctx, sql+where)
	e.Limits = tag.RowsAffected()
	return err
}

// EnterRestored enters the epoch anew for a database that was restored in place: what was given out between the backup and the
// restore is in no table. Attempts that are open in the restored data may have ended, or may run: they are closed as of another
// epoch. Another process may have entered it since lastCommit, when this one last saw a claim of its own committed.
func EnterRestored(ctx context.Context, pool schema.DB, lastCommit time.Time) (e Epoch, err error) {
	err = begin(ctx, pool, func(tx pgx.Tx) error {
		if err := lockLimits(ctx, tx, ""); err != nil {
			return err
		}
		e.Verdict, e.Why, e.Judged = Missing, "the data were set back under a dispatcher", true
		tag, err := tx.Exec(ctx, restoredSQL, lastCommit, e.Why)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE callq.call_open SET epoch = epoch || ' before a restore'`); err != nil {
			return err
		}
		return e.enter(ctx, tx, "")
	})
	return e, ledger.Wrap("enter the epoch", err)
}

func lockLimits(ctx context.Context, tx pgx.Tx, where string) error {
	_, err := tx.Exec(ctx, `SELECT FROM callq.call_limits`+where+` ORDER BY name COLLATE "C" FOR NO KEY UPDATE`)
	return err
}

// noteEpochSQL notes an epoch that is new. What stands in a limit or a worker is of a former server.
const noteEpochSQL = `
INSERT INTO callq.call_epochs (epoch, seen_at, verdict, lived_at)
SELECT callq.epoch(), clock_timestamp(),
    CASE WHEN NOT EXISTS (SELECT FROM callq.call_epochs) AND NOT EXISTS (SELECT FROM callq.call_limits WHERE epoch <> callq.epoch())
    THEN 'first' END,
    (SELECT max(CASE WHEN epoch = callq.epoch() THEN lived_at ELSE heartbeat_at END) FILTER (WHERE isfinite(heartbeat_at)) FROM callq.call_workers)
ON CONFLICT (epoch) DO NOTHING`

// Only one judges at a time.
const epochSQL = `
SELECT coalesce(verdict, ''), coalesce(why, ''), seen_at, lived_at FROM callq.call_epochs WHERE epoch = callq.epoch() FOR UPDATE`

const verdictSQL = `UPDATE callq.call_epochs SET verdict = $1, why = $2 WHERE epoch = callq.epoch()`

const adoptSQL = `UPDATE callq.call_open SET epoch = callq.epoch() WHERE epoch = ANY($1::text[])`

// A limit that is not counted yet has bounded no call. Nor has one of which more than the rate was missing when it entered the
// epoch before, if that may still count. What it was lowered by since then bounds both.
const enterSQL = `
UPDATE callq.call_limits l
SET epoch = callq.epoch(), missing_until = greatest(missing_until, clock_timestamp() + ` + mayArriveForSQL + `),
    known_less = CASE WHEN missing_until >= clock_timestamp() - 2 * window_size - interval '1 minute' THEN known_less ELSE 0 END,
    known_at = CASE WHEN complete_since IS NOT NULL AND (known_at IS NOT NULL OR missing_until IS NULL
        OR missing_until < clock_timestamp() - 2 * window_size - interval '1 minute') THEN clock_timestamp() END`

// missAfterFailoverSQL closes limits that are new, or have another form, until nothing that a former server gave out can
// count for them. Their rows are locked: they have just been written.
const missAfterFailoverSQL = `
UPDATE callq.call_limits l
SET missing_until = greatest(l.missing_until, m.seen_at + ` + mayArriveForSQL + `)
FROM callq.call_epochs m
WHERE m.epoch = callq.epoch() AND m.verdict = 'missing' AND l.name = ANY($1)
  AND (l.missing_until IS NOT NULL OR l.complete_since IS NULL) -- else an operator has opened it`

const restoredSQL = `
INSERT INTO callq.call_epochs AS m (epoch, seen_at, verdict, why) VALUES (callq.epoch(), clock_timestamp(), 'missing', $2)
ON CONFLICT (epoch) DO UPDATE SET seen_at = excluded.seen_at, verdict = excluded.verdict, why = excluded.why, lived_at = NULL
WHERE m.verdict <> 'missing' OR (m.seen_at BETWEEN $1 AND clock_timestamp()) IS NOT TRUE`

// mayArriveForSQL is how long after a failover a request of the former server may arrive. A handler whose claim or start never
// reached the new server may send until its timeout, unless the limit is anchored at the start.
const mayArriveForSQL = `l.send_within + ` + limit.LateMostSQL + ` + l.slack
    + CASE WHEN l.anchor = 'start' THEN interval '0' ELSE coalesce(
        (SELECT max(q.timeout) FROM callq.call_queues q WHERE q.limits @> ARRAY[l.name]), '0') END`

// Known returns what was charged to keys of limits when units went missing, of what counted then: parallel to names, keys
// and since. That much, and no more, may be given out until the missing units no longer count.
func Known(ctx context.Context, db ledger.DB, names, keys []string, since []time.Time) ([]int64, error) {
	known, err := collect(ctx, db, pgx.RowTo[int64], knownSQL, names, keys, since)
	return known, ledger.Wrap("read what was known to be charged", err)
}

// What is charged since ends in later buckets (ledger's rule.bucket). What was open then is in shards below 0.
const knownSQL = `
WITH asked AS MATERIALIZED (
    SELECT a.*, l.known_at + l.bucket_width AS until
    FROM unnest($1::text[], $2::text[], $3::timestamptz[]) WITH ORDINALITY AS a (name, key, since, number)
    CROSS JOIN LATERAL (SELECT * FROM callq.call_limits WHERE name = a.name LIMIT 1) l
)
SELECT coalesce(sum(u.used) FILTER (WHERE u.shard >= 0 AND u.bucket <= a.until), 0)::bigint
FROM asked a
LEFT JOIN callq.call_usage u ON u.limit_name = ANY (ARRAY[a.name]) AND u.key = a.key AND u.bucket > a.since
GROUP BY a.number
ORDER BY a.number`
