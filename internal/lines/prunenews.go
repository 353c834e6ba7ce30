package lines

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// CrowdedNews is Crowded of what waits to be due.
func CrowdedNews(ctx context.Context, db querier) ([]string, error) {
	return crowded(ctx, db, largeNewsSQL, crowdedNewsSQL)
}

// laterSQL is of news that no claim takes in for a while: whoever changes them is in no claim's way.
const laterSQL = `at > (SELECT clock_timestamp() + interval '10 seconds') AND calls > 0`

const largeNewsSQL = `
SELECT array_agg(r.name), pg_relation_size('call_news') / current_setting('block_size')::int
FROM call_queues r
CROSS JOIN LATERAL (SELECT sum(calls) AS calls FROM call_news WHERE queue = r.name AND ` + laterSQL + `) n
WHERE n.calls >= $1::bigint`

const crowdedNewsSQL = `
WITH sample AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY queue ORDER BY random()) AS n
    FROM call_news TABLESAMPLE SYSTEM ($2::real)
    WHERE queue = ANY($1) AND ` + laterSQL + `
), entries AS MATERIALIZED (
    SELECT s.queue, coalesce(s.keys[p.place], s.key) AS key, s.priority, s.task, s.ids[p.place] AS id, s.calls / least(s.calls, 4)::float8 AS weight
    FROM sample s
    CROSS JOIN LATERAL generate_series(0, least(s.calls, 4) - 1) AS i
    CROSS JOIN LATERAL (SELECT 1 + (s.calls::bigint * i / least(s.calls, 4))::int AS place OFFSET 0) p
    WHERE s.n <= $3
)` + mostlyEndedSQL

// NewsPlace is a row of news up to which a pass through a queue's has come.
type NewsPlace struct{ at, row string }

// PruneNews is a step of a pass through a queue's news that are not due, from their earliest on: it looks at rows
// with most calls, or one row more, behind from (nil: all), and takes out the calls that do not wait there. Rows that
// another transaction holds it passes over. It needs no lock. next is nil at the end.
func PruneNews(ctx context.Context, db querier, queue string, from *NewsPlace, most int) (next *NewsPlace, removed int64, err error) {
	if from == nil {
		from = &NewsPlace{"-infinity", "(0,0)"}
	}
	next = &NewsPlace{}
	err = db.QueryRow(ctx, pruneNewsSQL, pgx.StrictNamedArgs{"queue": queue, "at": from.at, "row": from.row, "most": most}).
		Scan(&next.at, &next.row, &removed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, 0, nil
	case err != nil:
		return from, 0, fmt.Errorf("take ended calls out of the news: %w", err)
	}
	return next, removed, nil
}

const pruneNewsSQL = `
WITH picked AS MATERIALIZED (
    SELECT place, at
    FROM (
        SELECT place, at, sum(calls) OVER (ORDER BY at, place) - calls AS before
        FROM (
            SELECT ctid AS place, at, calls FROM call_news
            WHERE queue = @queue AND ` + laterSQL + ` AND at >= @at::text::timestamptz AND (at > @at::text::timestamptz OR ctid > @row::text::tid)
            ORDER BY at, ctid
            LIMIT @most
        ) n
    ) n
    WHERE before < @most
), entries AS MATERIALIZED (
    SELECT n.place, i.nth, i.id, i.key, i.at, q.waits
    FROM (
        SELECT ctid AS place, key, priority, task, ids, keys, ats FROM call_news
        WHERE ctid = ANY (ARRAY(SELECT place FROM picked))
        FOR UPDATE SKIP LOCKED
    ) n
    CROSS JOIN LATERAL unnest(n.ids, n.keys, n.ats) WITH ORDINALITY AS i (id, key, at, nth)
    LEFT JOIN LATERAL (
        SELECT true AS waits FROM call_queue c
        WHERE c.id = i.id AND c.status IN ('new', 'error') AND ` + lineOfSQL + ` = (@queue, coalesce(i.key, n.key), n.priority, n.task)
        OFFSET 0
    ) q ON true
), looked AS MATERIALIZED (
    SELECT place, count(*) FILTER (WHERE waits IS NULL) AS gone, max(id) FILTER (WHERE waits) AS last_id,
        array_agg(id ORDER BY nth) FILTER (WHERE waits) AS ids, array_agg(key ORDER BY nth) FILTER (WHERE waits) AS keys,
        array_agg(at ORDER BY nth) FILTER (WHERE waits) AS ats
    FROM entries
    GROUP BY place
), emptied AS (
    DELETE FROM call_news WHERE ctid = ANY (ARRAY(SELECT place FROM looked WHERE ids IS NULL))
), kept AS (
    UPDATE call_news n
    SET calls = cardinality(l.ids), ids = l.ids, last_id = l.last_id, keys = CASE WHEN n.keys IS NOT NULL THEN l.keys END,
        ats = CASE WHEN n.ats IS NOT NULL THEN l.ats END, at = CASE WHEN n.ats IS NULL THEN n.at ELSE l.ats[1] END
    FROM (SELECT * FROM looked WHERE gone > 0 AND ids IS NOT NULL) l
    WHERE n.ctid = l.place
)
SELECT at::text, place::text, (SELECT coalesce(sum(gone), 0)::bigint FROM looked)
FROM picked
ORDER BY at DESC, place DESC
LIMIT 1`
