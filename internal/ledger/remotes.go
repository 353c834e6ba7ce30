package ledger

import (
	"context"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// Remote is a limit of an API's own: the newest answer of a limit of ours and, where that is per key, key. Times are
// by Postgres's clock.
type Remote struct {
	Limit, Key      string
	Most, Remaining *int64     // nil: it does not say
	Reset           *time.Time // likewise
	Answered        time.Time
	// Since is where our window began, or earlier, when the API counted the request. Nil: what was used then is not known any more.
	Since *time.Time
}

// RemoteRule is of a limit which answers are about it, and how it counts.
type RemoteRule struct {
	Name      string        `db:"name"`
	Rate      limit.Rate    `db:"rate"`
	PerKey    bool          `db:"per_key"`
	CountCost bool          `db:"count_cost"`
	Hosts     []string      `db:"hosts"` // whose answers; none: anybody's
	Wait      []string      `db:"wait"`  // headers that say of it when to come again, beside the usual ones
	Off       []string      `db:"off"`   // and those that do not
	Gained    time.Duration `db:"gained"`
	Now       time.Time     `db:"now"` // what Postgres's clock showed as it was read
}

// Since is Remote.Since of a request that the API counted after an instant.
func (r RemoteRule) Since(counted time.Time) *time.Time {
	since := r.Rate.Since(counted, r.Gained)
	if since.Before(r.Now.Add(-2*r.Rate.Window - 50*time.Second)) { // recovery removes usage that is 10 seconds older
		return nil
	}
	return &since
}

// RemoteRules reads the rules of some limits.
func RemoteRules(ctx context.Context, db DB, names []string) ([]RemoteRule, error) {
	rows, _ := db.Query(ctx, remoteRulesSQL, names) // CollectRows returns its error
	rules, err := pgx.CollectRows(rows, pgx.RowToStructByName[RemoteRule])
	return rules, Wrap("read which answers are about a limit", err)
}

// What the clock gained lately counts as a little more: then more counts as used, and less is lowered.
const remoteRulesSQL = `
SELECT l.name, jsonb_build_object('units', l.rate, 'window', (extract(epoch FROM l.window_size) * 1e9)::bigint) || l.shape AS rate,
    l.per_key, l.count_cost, l.hosts, g.gained, clock_timestamp() AS now,
    ARRAY(SELECT jsonb_array_elements_text(coalesce(l.headers -> 'wait', '[]'))) AS wait,
    ARRAY(SELECT jsonb_array_elements_text(coalesce(l.headers -> 'off', '[]'))) AS off
FROM callq.call_limits l
CROSS JOIN LATERAL (
    SELECT coalesce(sum(by), '0') AS gained FROM callq.call_clock_gains WHERE by > '0' AND at > clock_timestamp() - 2 * l.window_size - interval '10 minutes'
) g
WHERE l.name = ANY($1)`

// TellRemotes stores what APIs say of their limits, unless something newer is known. Each limit and key may be named once.
//
// Where less remains at an API than we count, it lowers what may be used until its reset: to what was in use when it counted
// the request, plus what remains. All that it can have counted of our requests had started by then, so it is open or in call_usage.
// What has started since counts as used too: then less is lowered. An API that counts as we do, and our requests alone, therefore
// lowers nothing.
func TellRemotes(ctx context.Context, db DB, remotes []Remote) error {
	_, err := db.Exec(ctx, tellRemotesSQL, pgx.StrictNamedArgs{
		"limits":    column(remotes, func(r Remote) string { return r.Limit }),
		"keys":      column(remotes, func(r Remote) string { return r.Key }),
		"most":      column(remotes, func(r Remote) *int64 { return r.Most }),
		"remaining": column(remotes, func(r Remote) *int64 { return r.Remaining }),
		"reset":     column(remotes, func(r Remote) *time.Time { return r.Reset }),
		"answered":  column(remotes, func(r Remote) time.Time { return r.Answered }),
		"since":     column(remotes, func(r Remote) *time.Time { return r.Since }),
	})
	return Wrap("tell what APIs say of their limits", err)
}

// tellRemotesSQL locks rows in the order of limits and keys. What was answered ahead was so before the clock was set back.
const tellRemotesSQL = `
WITH told AS MATERIALIZED (
    SELECT t.name, t.key, t.most, t.remaining, t.answered_at, t.since,
        CASE WHEN t.reset_at IS NOT NULL THEN least(t.reset_at, clock_timestamp() + l.retry_after) END AS reset_at,
        coalesce((l.shape ->> 'burst')::bigint, CASE WHEN l.per_key THEN (l.overrides ->> t.key)::bigint END, l.rate) AS units,
        l.trust <> 'ignore' AND l.window_size > '0' AS trusted
    FROM unnest(@limits::text[], @keys::text[], @most::bigint[], @remaining::bigint[], @reset::timestamptz[], @answered::timestamptz[],
        @since::timestamptz[]) AS t (name, key, most, remaining, reset_at, answered_at, since)
    JOIN callq.call_limits l ON l.name = t.name
), less AS MATERIALIZED (
    SELECT * FROM told WHERE trusted AND remaining < units AND since IS NOT NULL AND reset_at > clock_timestamp()
), open AS MATERIALIZED (
    SELECT u.name, u.key, sum(u.cost) AS units
    FROM callq.call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    JOIN less t ON t.name = u.name AND t.key = u.key
    WHERE o.started_at IS NOT NULL
    GROUP BY u.name, u.key
), used AS (
    SELECT t.name, t.key, t.units, t.remaining + coalesce(o.units, 0)
        + (SELECT coalesce(sum(u.used), 0) FROM callq.call_usage u WHERE u.limit_name = t.name AND u.key = t.key AND u.bucket > t.since) AS usable
    FROM less t
    LEFT JOIN open o ON o.name = t.name AND o.key = t.key
)
INSERT INTO callq.call_remotes AS r (limit_name, key, most, remaining, reset_at, answered_at, lowered)
SELECT t.name, t.key, t.most, t.remaining, t.reset_at, t.answered_at, CASE WHEN u.usable < u.units THEN u.usable END
FROM told t
LEFT JOIN used u ON u.name = t.name AND u.key = t.key
ORDER BY t.name, t.key
ON CONFLICT (limit_name, key) DO UPDATE
SET most = excluded.most, remaining = excluded.remaining, reset_at = excluded.reset_at, answered_at = excluded.answered_at,
    lowered = excluded.lowered
WHERE excluded.answered_at > r.answered_at OR r.answered_at > clock_timestamp() + interval '100 ms'`
