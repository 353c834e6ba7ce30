package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/limit"
)

// limits finds limits that let nothing through, and those whose rate an operator set.
func limits(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	found, err := askSQL(ctx, pool, limitsSQL)
	if err != nil {
		return nil, err
	}
	rows, err := collect[missingRow](ctx, pool, missingSQL)
	for _, l := range rows {
		rate := limit.Rate{Units: l.Rate, Window: l.WindowSize, Shape: l.Shape}
		if m := limit.MissingAt(rate, l.MissingUntil, l.KnownAt, l.Now, 0); m != nil {
			found = append(found, missing(l.Name, m, rate.Passed(m.Until, 0))...)
		}
	}
	return found, err
}

// A limit that no queue uses is idle, and left out.
const limitsSQL = `
SELECT f.level, f.what, f.fix
FROM call_limits l
CROSS JOIN LATERAL (VALUES
    (l.epoch <> callq_epoch(), 'problem',
        format('limit %s is shut: Postgres failed over or was restored, and no claim has seen it since', l.name),
        'start a dispatcher; what is known to be used then counts as ever, and what was left counts as used once'),
    (l.epoch = callq_epoch() AND l.complete_since IS NULL, 'problem',
        format('limit %s is shut: what it has used is not yet counted from the ledger', l.name),
        'start a dispatcher, which counts it; that waits until attempts under its former rule have ended'),
    (l.config_rate IS NOT NULL, 'note',
        format('limit %s has a rate that an operator set, not the configuration''s', l.name),
        format('callq limits reset %s', l.name))
) f (found, level, what, fix)
WHERE cardinality(l.queues) > 0 AND f.found
ORDER BY l.name`

type missingRow struct {
	Name                  string
	Rate                  int64
	WindowSize            time.Duration
	Shape                 limit.Shape
	MissingUntil, KnownAt *time.Time
	Now                   time.Time
}

const missingSQL = `
SELECT name, rate, window_size, shape, missing_until, known_at, clock_timestamp() AS now
FROM call_limits
WHERE cardinality(queues) > 0 AND epoch = callq_epoch() AND missing_until IS NOT NULL
ORDER BY name`

// missing reports units that may have been used without a trace, and when they stop to count.
func missing(name string, m *limit.Missing, until time.Time) []Finding {
	const layout = "2006-01-02 15:04:05Z"
	at := until.UTC().Format(layout)
	fix := "nothing: it opens by itself; sooner, where you know what was sent: callq limits open " + name + " --reason …"
	if !m.KnownAt.IsZero() {
		return one(Note, fmt.Sprintf("what was left of limit %s at %s counts as used until %s: Postgres failed over or was restored, "+
			"and of what was given out last some may be missing", name, m.KnownAt.UTC().Format(layout), at), fix)
	}
	return one(Problem, fmt.Sprintf("limit %s is shut until %s: of what was sent before, some may be missing (Postgres failed over or was "+
		"restored, or retention had removed it before the limit was as it is)", name, at), fix)
}

// Pauses are easily forgotten.
const pausesSQL = `
SELECT 'note' AS level,
    CASE WHEN keys > 0 THEN format('%s keys of %s %s are paused', keys, what, name)
    ELSE format('%s %s is paused (%s)', what, name, left(reason, 160)) END
    || coalesce(' until ' || to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"'), '') AS what,
    format('callq %ss resume %s', what, name) || CASE WHEN keys > 0 THEN ' --key …' ELSE '' END AS fix
FROM (
    SELECT what, name, nullif(max(until), 'infinity') AS until, count(*) FILTER (WHERE key <> '') AS keys, max(reason) AS reason
    FROM call_pauses WHERE until > clock_timestamp()
    GROUP BY what, name, key = ''
    ORDER BY what, name, key = '' DESC
    LIMIT 10
) p`
