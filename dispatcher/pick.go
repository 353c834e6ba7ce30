package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// survey is what a claim sees before it counts: the workers, what is paused, and whose calls wait.
type survey struct {
	roster *roster
	pauses []pausedKey
	keys   []string // with waiting calls, beginning after the one served last; at most keysMost
}

// pausedKey is a key of which nothing may be claimed; "" is all of them.
type pausedKey struct {
	Key string        `db:"key"`
	For time.Duration `db:"for"`
}

// keysMost is how many keys a claim looks at.
const keysMost = 256

func (d *Dispatcher) survey(ctx context.Context, tx pgx.Tx, queue string, limits []lockedLimit) (*survey, error) {
	names := make([]string, len(limits))
	for i, l := range limits {
		names[i] = l.Name
	}
	s := &survey{}
	var asks pgx.Batch
	asks.Queue(rosterSQL).Query(func(rows pgx.Rows) error {
		pools, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByNameLax[pool])
		s.roster = newRoster(pools)
		return err
	})
	asks.Queue(pausesSQL, queue, names).Query(func(rows pgx.Rows) (err error) {
		s.pauses, err = pgx.CollectRows(rows, pgx.RowToStructByName[pausedKey])
		return err
	})
	asks.Queue(keysSQL, queue, keysMost).Query(func(rows pgx.Rows) (err error) {
		s.keys, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err := tx.SendBatch(ctx, &asks).Close(); err != nil {
		return nil, fmt.Errorf("look at workers, pauses and keys: %w", err)
	}
	return s, nil
}

// pausedFor is how long the queue is paused as a whole.
func (s *survey) pausedFor() time.Duration {
	var longest time.Duration
	for _, p := range s.pauses {
		if p.Key == "" {
			longest = max(longest, p.For)
		}
	}
	return longest
}

// unpaused are the keys that are not paused, and for how long the first of those that are will be.
func (s *survey) unpaused() (keys []string, next time.Duration) {
	paused := map[string]time.Duration{}
	for _, p := range s.pauses {
		paused[p.Key] = max(paused[p.Key], p.For)
	}
	next = lookLater
	for _, key := range s.keys {
		if wait, is := paused[key]; is {
			next = min(next, wait)
			continue
		}
		keys = append(keys, key)
	}
	return keys, next
}

// A pause without an end is looked at again in a day.
const pausesSQL = `
SELECT key, least(until - clock_timestamp(), interval '1 day') AS for
FROM (SELECT key, least(until, clock_timestamp() + interval '1 day') AS until
      FROM call_pauses
      WHERE until > clock_timestamp() AND (what = 'queue' AND name = $1 OR what = 'limit' AND name = ANY($2))) p`

// keysSQL jumps from key to key through call_queue_key_idx: those after the key served last, then
// ” if a call without a key waits, then those up to it.
const keysSQL = `
WITH RECURSIVE served AS (
    SELECT served_key AS key FROM call_queues WHERE name = $1
), above AS (
    SELECT (SELECT q.key FROM call_queue q
            WHERE coalesce(q.queue, 'default') = $1 AND q.ready_at IS NOT NULL AND coalesce(q.key, '') <> '' AND q.key > s.key
            ORDER BY q.key LIMIT 1) AS key
    FROM served s
    UNION ALL
    SELECT (SELECT q.key FROM call_queue q
            WHERE coalesce(q.queue, 'default') = $1 AND q.ready_at IS NOT NULL AND coalesce(q.key, '') <> '' AND q.key > a.key
            ORDER BY q.key LIMIT 1)
    FROM above a WHERE a.key IS NOT NULL
), below AS (
    SELECT (SELECT q.key FROM call_queue q
            WHERE coalesce(q.queue, 'default') = $1 AND q.ready_at IS NOT NULL AND coalesce(q.key, '') <> '' AND q.key <= s.key
            ORDER BY q.key LIMIT 1) AS key
    FROM served s
    WHERE s.key <> ''
    UNION ALL
    SELECT (SELECT q.key FROM call_queue q
            WHERE coalesce(q.queue, 'default') = $1 AND q.ready_at IS NOT NULL AND coalesce(q.key, '') <> ''
              AND q.key > b.key AND q.key <= s.key
            ORDER BY q.key LIMIT 1)
    FROM below b, served s WHERE b.key IS NOT NULL
)
SELECT key FROM (
    SELECT key FROM above WHERE key IS NOT NULL
    UNION ALL
    SELECT '' WHERE EXISTS (
        SELECT FROM call_queue q
        WHERE coalesce(q.queue, 'default') = $1 AND q.ready_at IS NOT NULL AND coalesce(q.key, '') = '')
    UNION ALL
    SELECT key FROM below WHERE key IS NOT NULL
) k
LIMIT $2`

// pick locks the next due calls of each key, at most as many as its share.
func (d *Dispatcher) pick(ctx context.Context, tx pgx.Tx, queue string, now time.Time, keys []string, shares []int64, tasks []string) ([]candidate, error) {
	var asks pgx.Batch
	var candidates []candidate
	collect := func(rows pgx.Rows) error {
		more, err := pgx.CollectRows(rows, pgx.RowToStructByName[candidate])
		candidates = append(candidates, more...)
		return err
	}
	args := pgx.StrictNamedArgs{"queue": queue, "now": now, "tasks": tasks, "most": d.cfg.MaxData}
	var named []string
	var namedShares []int64
	for i, key := range keys {
		if key != "" {
			named, namedShares = append(named, key), append(namedShares, shares[i])
			continue
		}
		asks.Queue(pickSQL, pgx.StrictNamedArgs{"want": shares[i], "queue": queue, "now": now, "tasks": tasks, "most": d.cfg.MaxData}).Query(collect)
	}
	if len(named) > 0 {
		args["keys"], args["shares"] = named, namedShares
		asks.Queue(pickKeysSQL, args).Query(collect)
	}
	if err := tx.SendBatch(ctx, &asks).Close(); err != nil {
		return nil, fmt.Errorf("pick calls: %w", err)
	}
	return candidates, nil
}

// pickSQL walks call_queue_ready_idx, one priority after the other, and locks what it returns;
// what another dispatcher or a producer's transaction holds is passed over. The outer LIMIT stops
// the walk.
const pickSQL = `
SELECT c.*
FROM generate_series(0, 9) AS p (priority)
CROSS JOIN LATERAL (
    SELECT q.id, '' AS key,` + candidateSQL + `
      AND coalesce(q.key, '') = ''
    ORDER BY q.ready_at, q.id
    LIMIT @want
    FOR UPDATE OF q SKIP LOCKED
) c
LIMIT @want`

// pickKeysSQL does the same for each key, through call_queue_key_idx.
const pickKeysSQL = `
SELECT k.*
FROM unnest(@keys::text[], @shares::bigint[]) AS s (key, want)
CROSS JOIN LATERAL (
    SELECT c.*
    FROM generate_series(0, 9) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT q.id, s.key,` + candidateSQL + `
          AND coalesce(q.key, '') <> '' AND q.key = s.key
        ORDER BY q.ready_at, q.id
        LIMIT s.want
        FOR UPDATE OF q SKIP LOCKED
    ) c
    LIMIT s.want
) k`

// call_data is only unpacked where its stored size could hide one over the limit (pglz packs at
// most 300 times).
const candidateSQL = `
        coalesce(q.cost, 1) AS cost, coalesce(q.task, 'http') AS task,
        CASE
        WHEN q.expires_at <= @now THEN 'expired: not sent by ' || q.expires_at
        WHEN q.priority NOT BETWEEN 0 AND 9 THEN 'priority ' || q.priority || ' is not within 0 to 9'
        WHEN q.cost < 1 THEN 'cost ' || q.cost || ' is below 1'
        WHEN q.max_attempts < 1 THEN 'max_attempts ' || q.max_attempts || ' is below 1'
        WHEN octet_length(q.key) > 255 THEN 'key is longer than 255 bytes'
        WHEN pg_column_size(q.call_data) * 300 > @most::bigint AND octet_length(q.call_data::text) > @most::bigint
            THEN 'call_data has ' || octet_length(q.call_data::text) || ' bytes, over the limit of ' || @most::bigint
        END AS refusal
    FROM call_queue q
    WHERE coalesce(q.queue, 'default') = @queue
      AND least(greatest(coalesce(q.priority, 5), 0), 9) = p.priority
      AND q.ready_at <= @now
      AND coalesce(q.task, 'http') = ANY(@tasks)`
