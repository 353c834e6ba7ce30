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
// that is applied later bounded nobody before, so it is closed for as long. Whoever first sees the epoch writes down when that
// was. Late is safe.

// EnterEpoch has all limits enter the current failover epoch, before anything is closed or claimed in it, and returns how many
// did. Whoever comes second finds nothing to do.
func EnterEpoch(ctx context.Context, pool schema.DB) (int64, error) {
	return enter(ctx, pool, ` WHERE epoch <> callq.epoch()`, func(tx pgx.Tx) (bool, error) {
		_, err := tx.Exec(ctx, noteEpochSQL)
		return true, err
	})
}

// EnterRestored enters the epoch anew for a database that was restored in place: what was given out between the backup and the
// restore is in no table. Attempts that are open in the restored data may have ended, or may run: they are closed as of another
// epoch. Another process may have entered it since lastCommit, when this one last saw a claim of its own committed.
func EnterRestored(ctx context.Context, pool schema.DB, lastCommit time.Time) (int64, error) {
	return enter(ctx, pool, "", func(tx pgx.Tx) (bool, error) {
		tag, err := tx.Exec(ctx, restoredSQL, lastCommit)
		if err != nil || tag.RowsAffected() == 0 {
			return false, err
		}
		_, err = tx.Exec(ctx, `UPDATE callq.call_open SET epoch = epoch || ' before a restore'`)
		return true, err
	})
}

// enter locks limits, and has them enter the epoch if note says so.
func enter(ctx context.Context, pool schema.DB, where string, note func(pgx.Tx) (bool, error)) (limits int64, err error) {
	err = begin(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM callq.call_limits`+where+` ORDER BY name COLLATE "C" FOR NO KEY UPDATE`); err != nil {
			return err
		}
		if enters, err := note(tx); err != nil || !enters {
			return err
		}
		tag, err := tx.Exec(ctx, enterSQL+where)
		limits = tag.RowsAffected()
		return err
	})
	return limits, ledger.Wrap("enter the epoch", err)
}

// noteEpochSQL keeps one row, of the current epoch. The first epoch has no beginning: there was no server before.
const noteEpochSQL = `
WITH former AS (DELETE FROM callq.call_meta WHERE name LIKE 'epoch %' AND name <> 'epoch ' || callq.epoch() RETURNING name)
INSERT INTO callq.call_meta (name, at)
SELECT 'epoch ' || callq.epoch(), CASE
    WHEN EXISTS (SELECT FROM former) OR EXISTS (SELECT FROM callq.call_limits WHERE epoch <> callq.epoch()) THEN clock_timestamp() END
ON CONFLICT (name) DO NOTHING`

// A limit that is not counted yet has bounded nobody. Nor has one of which more than the rate was missing when it entered the
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
SET missing_until = greatest(l.missing_until, m.at + ` + mayArriveForSQL + `)
FROM callq.call_meta m
WHERE m.name = 'epoch ' || callq.epoch() AND m.at IS NOT NULL AND l.name = ANY($1)
  AND (l.missing_until IS NOT NULL OR l.complete_since IS NULL) -- else an operator has opened it`

const restoredSQL = `
INSERT INTO callq.call_meta AS m (name, at) VALUES ('epoch ' || callq.epoch(), clock_timestamp())
ON CONFLICT (name) DO UPDATE SET at = excluded.at WHERE (m.at BETWEEN $1 AND clock_timestamp()) IS NOT TRUE`

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
    SELECT a.*, l.known_at + coalesce(l.bucket_width, l.window_size / 200) AS until
    FROM unnest($1::text[], $2::text[], $3::timestamptz[]) WITH ORDINALITY AS a (name, key, since, number)
    CROSS JOIN LATERAL (SELECT * FROM callq.call_limits WHERE name = a.name LIMIT 1) l
)
SELECT coalesce(sum(u.used) FILTER (WHERE u.shard >= 0 AND u.bucket <= a.until), 0)::bigint
FROM asked a
LEFT JOIN callq.call_usage u ON u.limit_name = ANY (ARRAY[a.name]) AND u.key = a.key AND u.bucket > a.since
GROUP BY a.number
ORDER BY a.number`
