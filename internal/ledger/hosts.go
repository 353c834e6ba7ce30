package ledger

import (
	"context"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Answered means that a request to a host was written at Written or later, and answered by Answered, on Postgres's clock.
type Answered struct {
	Host     string
	Written  time.Time
	Answered time.Time
	Now      time.Time // what Postgres's clock showed as it was read
}

// ClockMargin is how much later a request must have been written than another was acknowledged, where one is known by Postgres's
// clock alone: steps of the clock back by more are seen (forgetHostsSQL).
const ClockMargin = 2 * time.Second

// AnsweredHosts returns the hosts with requests in doubt, and what is known to have been answered of each. Times are zero where
// nothing is.
func AnsweredHosts(ctx context.Context, db DB) ([]Answered, error) {
	rows, _ := db.Query(ctx, answeredHostsSQL) // CollectRows returns its error
	known, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Answered])
	return known, Wrap("read what hosts have answered", err)
}

const answeredHostsSQL = `
SELECT host, coalesce(written_at, timestamptz '0001-01-01 00:00:00Z'), coalesce(answered_at, timestamptz '0001-01-01 00:00:00Z'),
    clock_timestamp()
FROM callq.call_hosts
WHERE answered_at < clock_timestamp() + interval '100 ms' IS NOT FALSE`

// TellHosts stores that requests to some hosts are in doubt, and what was answered of others.
func TellHosts(ctx context.Context, db DB, doubtful []string, answered []Answered) error {
	_, err := db.Exec(ctx, tellHostsSQL, pgx.StrictNamedArgs{
		"doubtful": doubtful,
		"hosts":    column(answered, func(a Answered) string { return a.Host }),
		"written":  column(answered, func(a Answered) time.Time { return a.Written }),
		"answered": column(answered, func(a Answered) time.Time { return a.Answered }),
	})
	return Wrap("tell what hosts have answered", err)
}

// tellHostsSQL locks rows in the order of the hosts, each once.
const tellHostsSQL = `
INSERT INTO callq.call_hosts AS h (host, asked_at, written_at, answered_at)
SELECT host, clock_timestamp(), max(written_at), max(answered_at)
FROM (
    SELECT unnest(@doubtful::text[]) AS host, NULL::timestamptz AS written_at, NULL::timestamptz AS answered_at
    UNION ALL
    SELECT * FROM unnest(@hosts::text[], @written::timestamptz[], @answered::timestamptz[]) AS a (host, written_at, answered_at)
) t
GROUP BY host
ORDER BY host
ON CONFLICT (host) DO UPDATE
SET asked_at = CASE WHEN h.host = ANY(@doubtful) THEN excluded.asked_at ELSE h.asked_at END,
    written_at = CASE WHEN excluded.written_at > coalesce(h.written_at, '-infinity') THEN excluded.written_at ELSE h.written_at END,
    answered_at = CASE WHEN excluded.written_at > coalesce(h.written_at, '-infinity') THEN excluded.answered_at ELSE h.answered_at END
WHERE excluded.written_at > coalesce(h.written_at, '-infinity') OR h.asked_at < clock_timestamp() - interval '10 seconds'`

// Prove ends the doubt about attempts that ended without an answer: it moves what they are charged from limit.Unknown to when a
// later request to their hosts was answered. Where a host has answered nothing that was asked so late for arrive_within, or a little longer, since the last of
// them was written, or since it was probed, the oldest counts as arrived now, without a proof: so one request at a time asks the host
// whether it is back. No queue keeps a request for a day: what is older has arrived, or never will. It returns how many were
// proven, and how many were assumed.
func Prove(ctx context.Context, db schema.DB) (proven, assumed int, err error) {
	var doubt bool
	if err := db.QueryRow(ctx, inDoubtSQL).Scan(&doubt); err != nil || !doubt {
		return 0, 0, Wrap("look for requests in doubt", err)
	}
	var aged int
	var batch pgx.Batch
	batch.Queue(forgetHostsSQL)
	batch.Queue(askHostsSQL)
	batch.Queue(provenSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&proven) })
	batch.Queue(assumedSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&assumed) })
	batch.Queue(agedSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&aged) })
	err = db.SendBatch(ctx, &batch).Close()
	return proven, assumed + aged, Wrap("prove arrivals", err)
}

// LetOff counts the requests in doubt of one limit as arrived now, on an operator's word, and returns how many they were.
func LetOff(ctx context.Context, tx pgx.Tx, limitName string) (n int, err error) {
	err = tx.QueryRow(ctx, letOffSQL, limitName).Scan(&n)
	return n, Wrap("count requests in doubt as arrived", err)
}

const (
	inDoubtSQL = `
SELECT EXISTS (SELECT FROM callq.call_hosts) OR EXISTS (SELECT FROM public.call_attempts WHERE arrived_by = ` + limit.UnknownSQL + `)`

	askHostsSQL = `
INSERT INTO callq.call_hosts AS h (host, asked_at)
SELECT host, clock_timestamp() FROM public.call_attempts WHERE arrived_by = ` + limit.UnknownSQL + ` AND host IS NOT NULL
GROUP BY host
ORDER BY host
ON CONFLICT (host) DO UPDATE SET asked_at = excluded.asked_at WHERE h.asked_at < clock_timestamp() - interval '10 seconds'`

	// Workers ask again each second while a request is in doubt. What was answered in the future was so before the clock was set
	// back: soon the same times come again.
	forgetHostsSQL = `
DELETE FROM callq.call_hosts
WHERE asked_at < clock_timestamp() - interval '1 minute' OR asked_at > clock_timestamp() + interval '1 minute'
   OR answered_at > clock_timestamp() + interval '100 ms'`

	// provenSQL uses call_attempts_unproven_idx, as does assumedSQL.
	provenSQL = `
SELECT callq.settle(array_agg(call_id), array_agg(attempt), array_agg(at), 'later', NULL)
FROM (
    SELECT a.call_id, a.attempt, h.answered_at AS at
    FROM callq.call_hosts h
    JOIN public.call_attempts a ON a.host = h.host AND a.sent_by + interval '2 seconds' <= h.written_at AND a.arrived_by = ` + limit.UnknownSQL + `
    ORDER BY a.call_id, a.attempt
    LIMIT 500
    FOR NO KEY UPDATE OF a SKIP LOCKED
) a`

	// It waits up to half as long again, by a hash: in step with an API that stands still at regular times, no probe would ever find
	// it awake.
	assumedSQL = `
WITH due AS MATERIALIZED (
    SELECT h.host, a.call_id, a.attempt
    FROM callq.call_hosts h
    CROSS JOIN LATERAL (
        SELECT * FROM public.call_attempts WHERE host = h.host AND arrived_by = ` + limit.UnknownSQL + ` ORDER BY sent_by LIMIT 1
    ) a
    CROSS JOIN LATERAL (
        SELECT max(sent_by) AS at FROM public.call_attempts WHERE host = h.host AND arrived_by = ` + limit.UnknownSQL + `
    ) last
    CROSS JOIN LATERAL (
        SELECT max(l.arrive_within) AS within
        FROM jsonb_to_recordset(a.charged) AS c ("limit" text, until timestamptz) JOIN callq.call_limits l ON l.name = c."limit"
        WHERE c.until = ` + limit.UnknownSQL + `
    ) w
    WHERE greatest(last.at, h.probed_at, h.answered_at) + least(coalesce(w.within, '10 seconds'), '1 day') * (1 + (hashtext(h.host || last.at) & 255) / 512.0) < clock_timestamp()
    FOR NO KEY UPDATE OF h SKIP LOCKED
), probed AS (
    UPDATE callq.call_hosts h SET probed_at = clock_timestamp() FROM due d WHERE h.host = d.host
)
SELECT callq.settle(array_agg(call_id), array_agg(attempt), array_agg(clock_timestamp()), 'assumed', NULL)
FROM (
    SELECT a.call_id, a.attempt
    FROM due d
    JOIN public.call_attempts a ON a.call_id = d.call_id AND a.attempt = d.attempt AND a.arrived_by = ` + limit.UnknownSQL + `
    FOR NO KEY UPDATE OF a SKIP LOCKED
) a`

	agedSQL = `
SELECT callq.settle(array_agg(call_id), array_agg(attempt), array_agg(clock_timestamp()), 'assumed', NULL)
FROM (
    SELECT a.call_id, a.attempt
    FROM public.call_attempts a
    WHERE a.arrived_by = ` + limit.UnknownSQL + ` AND greatest(a.sent_by, a.finished_at) < clock_timestamp() - interval '1 day'
    ORDER BY a.call_id, a.attempt
    LIMIT 500
    FOR NO KEY UPDATE OF a SKIP LOCKED
) a`

	// letOffSQL settles what counts for one limit.
	letOffSQL = `
SELECT callq.settle(array_agg(call_id), array_agg(attempt), array_agg(clock_timestamp()), 'assumed', $1)
FROM (
    SELECT a.call_id, a.attempt
    FROM public.call_attempts a
    WHERE a.arrived_by = ` + limit.UnknownSQL + ` AND EXISTS (
        SELECT FROM jsonb_to_recordset(a.charged) AS c ("limit" text, until timestamptz) WHERE c."limit" = $1 AND c.until = a.arrived_by)
    ORDER BY a.call_id, a.attempt
    FOR NO KEY UPDATE OF a
) a`
)
