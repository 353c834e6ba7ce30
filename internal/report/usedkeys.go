package report

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/ledger"
)

// usedKeys are keys of limits, a pair each: ” of those that are not per key. nil: all.
type usedKeys struct{ limits, keys []string }

const (
	usageMost  = 50_000 // rows of call_usage that are all read
	drawnPages = 100    // of more
)

// readUsedKeys says which keys' usage is to be read to show limits: that of this key; unless it is nil, of all keys
// in use. Where those are very many, it is of those that the fullest is likely to be among: of each limit per key
// some 500 in whose lines calls wait, those that are blocked for longest first; 500 that have calls open; those that
// Postgres's statistics have as the most common; and 100 that use most of what is drawn from all usage. With more
// than ten such limits they are fewer of each.
func readUsedKeys(ctx context.Context, db ledger.DB, names []string, key *string) (u usedKeys, err error) {
	sql, args := keySQL, []any{names, key}
	if key == nil {
		usage, err := collectOne[struct {
			Rows  int64   `db:"rows"`
			Pages float64 `db:"pages"`
		}](ctx, db, "read how much usage there is", usageSizeSQL, usageMost+1)
		if err != nil || usage == nil || usage.Rows <= usageMost {
			return u, err
		}
		sql, args = likelySQL, []any{names, 100 * min(1, drawnPages/max(usage.Pages, 1))}
	}
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return u, fmt.Errorf("find the keys that limits are used by: %w", err)
	}
	var name, of string
	u = usedKeys{[]string{}, []string{}}
	if _, err := pgx.ForEachRow(rows, []any{&name, &of}, func() error {
		u.limits, u.keys = append(u.limits, name), append(u.keys, of)
		return nil
	}); err != nil {
		return u, fmt.Errorf("find the keys that limits are used by: %w", err)
	}
	return u, nil
}

// sql is a table of their usage; the arguments that it names come to args.
func (u usedKeys) sql(args *[]any) string {
	if u.limits == nil {
		return "call_usage"
	}
	*args = append(*args, u.limits, u.keys)
	return fmt.Sprintf(`(
    SELECT u.*
    FROM unnest($%d::text[], $%d::text[]) AS k (name, key)
    CROSS JOIN LATERAL (SELECT * FROM call_usage WHERE limit_name = k.name AND key = k.key OFFSET 0) u
)`, len(*args)-1, len(*args))
}

const usageSizeSQL = `SELECT (SELECT count(*) FROM (SELECT FROM call_usage LIMIT $1) u) AS rows, (pg_relation_size('call_usage') / 8192)::float8 AS pages`

const keySQL = `SELECT name, CASE WHEN per_key THEN $2 ELSE '' END FROM call_limits WHERE $1::text[] IS NULL OR name = ANY($1)`

const likelySQL = `
WITH asked AS (
    SELECT name, per_key, queues, most / greatest(cardinality(queues), 1) + 1 AS of_queue, most / 5 + 1 AS drawn
    FROM (
        SELECT *, least(500, 5000 / greatest(count(*) FILTER (WHERE per_key) OVER (), 1)) AS most
        FROM call_limits WHERE $1::text[] IS NULL OR name = ANY($1)
    ) l
), open AS (
    SELECT limits, keys FROM call_open LIMIT 500
)
SELECT name, '' FROM asked WHERE NOT per_key
UNION
SELECT a.name, k.key
FROM asked a
CROSS JOIN LATERAL unnest(a.queues) AS q (name)
CROSS JOIN LATERAL (
    (SELECT key FROM call_lines WHERE queue = q.name AND wake_at IS NOT NULL ORDER BY wake_at DESC LIMIT a.of_queue)
    UNION ALL
    (SELECT key FROM call_lines WHERE queue = q.name LIMIT a.of_queue)
) k
WHERE a.per_key
UNION
SELECT a.name, u.key
FROM open o
CROSS JOIN LATERAL unnest(o.limits, o.keys) AS u (name, key)
JOIN asked a ON a.name = u.name
WHERE a.per_key
UNION
SELECT a.name, k.key
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = 'key'
CROSS JOIN LATERAL unnest(s.most_common_vals::text::text[]) AS k (key)
CROSS JOIN asked a
WHERE c.oid = 'call_usage'::regclass AND a.per_key
UNION
SELECT name, key
FROM (
    SELECT a.name, u.key, a.drawn, row_number() OVER (PARTITION BY a.name ORDER BY sum(u.used) DESC) AS place
    FROM call_usage u TABLESAMPLE SYSTEM ($2)
    JOIN asked a ON a.name = u.limit_name
    WHERE a.per_key
    GROUP BY a.name, u.key, a.drawn
) drawn
WHERE place <= drawn.drawn`
