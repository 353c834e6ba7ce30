package lines

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// foldMost is about how many rows of news one statement folds: it holds their locks for some hundredths of a second.
const foldMost = 5000

// Fold makes fewer rows of a million that each wait for a time of their own: of queues with more than crowd rows of
// news that are due in 10 s or later. What has many rows of news takes long to count. It needs no lock. Between its
// statements it asks whether to go on; all says that it came to the end.
func Fold(ctx context.Context, pool *pgxpool.Pool, crowd int, goOn func() bool) (all bool, err error) {
	for {
		var most int64
		if err := pool.QueryRow(ctx, foldSQL, crowd, max(foldMost, crowd)).Scan(&most); err != nil {
			return false, fmt.Errorf("fold the news: %w", err)
		}
		if most < foldMost {
			return true, nil
		}
		if !goOn() {
			return false, nil
		}
	}
}

// Claims take what is due, so they wait for none of these rows; another that folds them passes over them. They stay
// apart by whether they were claimed before.
const foldSQL = `
WITH crowded AS MATERIALIZED (
    SELECT r.name
    FROM call_queues r
    WHERE EXISTS (
        SELECT FROM call_news
        WHERE queue = r.name AND ` + laterSQL + ` AND ats IS NULL AND calls < 16
        OFFSET $1
    )
), single AS (
    DELETE FROM call_news
    WHERE ctid = ANY (ARRAY(
        SELECT n.ctid
        FROM crowded c
        CROSS JOIN LATERAL (
            SELECT ctid FROM call_news
            WHERE queue = c.name AND ` + laterSQL + ` AND ats IS NULL AND calls < 16
            ORDER BY at
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        ) n))
    RETURNING queue, at, task, key, priority, ids, keys, again
), placed AS (
    SELECT s.queue, s.at, s.task, coalesce(i.key, s.key) AS key, s.priority, s.again, i.id,
        row_number() OVER (PARTITION BY s.queue, s.task, s.priority, s.again ORDER BY s.at, i.id) - 1 AS place
    FROM single s CROSS JOIN LATERAL unnest(s.ids, s.keys) AS i (id, key)
), folded AS (
    INSERT INTO call_news (queue, at, task, key, priority, calls, ids, last_id, keys, ats, again)
    SELECT queue, min(at), task, '', priority, count(*), array_agg(id ORDER BY at, id), max(id), array_agg(key ORDER BY at, id), array_agg(at ORDER BY at, id), again
    FROM placed
    GROUP BY queue, task, priority, again, place / 64
)
SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM single GROUP BY queue) s`
