package doctor

import (
	"context"

	"github.com/callq/callq/internal/schema"
)

// What a failover lost shows in limits for as long as a window lasts, and in calls that were made again.
const failoversSQL = `
SELECT 'note' AS level, format('Postgres failed over, or was restored, by %s, and may lack what it had committed since %s: calls that were made '
        || 'in between may have been made again, and calls that were inserted then are gone (%s)',
    date_trunc('second', seen_at), coalesce(date_trunc('second', lived_at)::text, 'its last commit'), why) AS what,
    'look through what your API saw in that time; callq verify says what it rests on' AS fix
FROM callq.call_epochs
WHERE verdict = 'missing' AND seen_at > clock_timestamp() - interval '1 day'
ORDER BY seen_at`

// Losses checks that a failover loses nothing, if it is so configured. It returns an error only if Postgres cannot be
// reached.
func Losses(ctx context.Context, pool schema.DB) ([]Finding, error) {
	return check{"failover", asks(lossesSQL)}.run(ctx, pool)
}

const lossesSQL = `
SELECT 'problem' AS level, 'postgres.failover is lossless, but a failover may lose commits: ' || why AS what,
    fix || ', or postgres.failover: witnessed' AS fix
FROM (VALUES
    (current_setting('synchronous_commit') IN ('off', 'local'), 'synchronous_commit is ' || current_setting('synchronous_commit'),
        'set synchronous_commit to on'),
    (current_setting('synchronous_standby_names') = '' AND EXISTS (SELECT FROM pg_stat_replication),
        'synchronous_standby_names is empty, so commits wait for no standby', 'set synchronous_standby_names')
) AS said (wrong, why, fix)
WHERE wrong`

// Dispatchers note it once a minute.
const besideSQL = `
SELECT 'problem' AS level, 'a copy of this Postgres''s files runs beside it, and hands over calls through the same Redis: each takes the other''s calls, '
        || 'which come late, and some are made twice' AS what,
    'give one of them another Redis, or stop its dispatchers and workers' AS fix
FROM callq.call_meta
WHERE name = 'beside' AND position > extract(epoch FROM clock_timestamp()) - 180`
