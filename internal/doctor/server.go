package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
)

const clockDifference = 500 * time.Millisecond // allowed between machines that both keep the time

// clocks compares this machine's clock with Postgres's. callq uses Postgres's alone, but if NTP keeps both and they
// differ, one of them is wrong.
func clocks(ctx context.Context, pool schema.DB) ([]Finding, error) {
	asked := time.Now()
	var at time.Time
	err := pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at)
	half := time.Since(asked) / 2
	return compareClocks(at.Sub(asked.Round(0).Add(half)), half), err
}

// compareClocks judges by how much Postgres's clock is ahead, give or take within.
func compareClocks(ahead, within time.Duration) []Finding {
	where := "ahead of"
	if ahead < 0 {
		where = "behind"
	}
	what := fmt.Sprintf("Postgres's clock is %s %s this machine's, give or take %s",
		ahead.Abs().Round(time.Millisecond), where, within.Round(time.Millisecond))
	return judge(ahead.Abs()-within <= clockDifference, what, what, "have NTP (chrony) keep both; limits and run_at use Postgres's. "+
		"Before you set that forward, pause the limits for their longest window: callq limits pause NAME --for …")
}

// Postgres's clock was set back while usage that was charged before lies ahead. A request without an answer is charged up
// to slack ahead, in a bucket that is labelled with its end.
const clockStepsSQL = `
SELECT 'problem' AS level,
    format('Postgres''s clock was set back: units of limit %s were used up to %ss ahead of it, and count until %s',
        l.name, round(extract(epoch FROM max(u.bucket) - clock_timestamp())),
        date_trunc('second', max(u.bucket) + l.window_size * 1.001)) AS what,
    'it ends by itself; have NTP (chrony) slew the clock rather than step it' AS fix
FROM callq.call_limits l
JOIN callq.call_usage u ON u.limit_name = l.name
WHERE u.bucket < ` + limit.UnknownSQL + ` AND u.bucket > clock_timestamp() + greatest(l.slack, l.arrive_within) + l.bucket_width + interval '10 seconds'
GROUP BY l.name, l.window_size`

// What an operator set, which is easily forgotten.
const byHandSQL = `
SELECT 'note' AS level, format('%s %s%s is paused%s: %s', what, name, ', key ' || nullif(key, ''),
        ' until ' || date_trunc('second', nullif(until, 'infinity')), reason) AS what,
    format('callq %ss resume %s%s', what, name, ' --key ' || nullif(key, '')) AS fix
FROM (SELECT * FROM callq.call_pauses WHERE until > clock_timestamp() AND spell IS NULL ORDER BY at DESC LIMIT 10) p
UNION ALL
SELECT 'note', format('limit %s has a rate that an operator set, not the configuration''s', name), 'callq limits reset ' || name
FROM callq.call_limits WHERE config IS NOT NULL AND queues <> '{}'`

// Settings of Postgres that callq depends on: the values that are bad, as a regular expression, and the good one. callq's
// connections set some for themselves; these are what producers and Postgres's own processes get. A statement_timeout is bad
// below 30 s.
const settingsSQL = `
SELECT s.level, format('%s is %s: %s', c.name, c.setting, s.why) AS what,
    CASE c.source
    WHEN 'database' THEN format('ALTER DATABASE %I SET %s = %s;', current_database(), c.name, s.good)
    WHEN 'user' THEN format('ALTER ROLE %I SET %s = %s;', current_user, c.name, s.good)
    WHEN 'database user' THEN format('ALTER ROLE %I IN DATABASE %I SET %s = %s;', current_user, current_database(), c.name, s.good)
    WHEN 'client' THEN format('take %s out of the connection''s options', c.name)
    ELSE format('ALTER SYSTEM SET %s = %s; SELECT pg_reload_conf();', c.name, s.good) END AS fix
FROM pg_settings c
JOIN (VALUES
    ('fsync', 'off', 'on', 'problem', 'a crash can corrupt the database, and forget what limits have used'),
    ('full_page_writes', 'off', 'on', 'problem', 'a crash can corrupt the database, and forget what limits have used'),
    ('synchronous_commit', 'off', 'on', 'problem', 'an insert that was acknowledged may be lost in a crash'),
    ('autovacuum', 'off', 'on', 'problem', 'tables that callq changes all the time grow without end'),
    ('track_counts', 'off', 'on', 'problem', 'autovacuum does nothing without it'),
    ('session_replication_role', 'replica', 'origin', 'problem', 'triggers do not fire: calls that are inserted are not found'),
    ('default_transaction_isolation', 'serializable|repeatable read|read uncommitted', '''read committed''', 'problem',
        'callq''s statements count on read committed'),
    ('default_transaction_read_only', 'on', 'off', 'problem', 'nothing can be inserted or claimed'),
    ('statement_timeout', '[1-9]\d{0,3}|[12]\d{4}', '0', 'note', 'retention and vacuum may be cut short')
) s (name, bad, good, level, why) ON s.name = c.name AND c.setting ~ ('^(' || s.bad || ')$')
UNION ALL
SELECT 'problem', 'this Postgres is a standby: nothing can be inserted or claimed', 'set postgres.url to the primary'
WHERE pg_is_in_recovery()`

// reads finds that a load balancer has a standby answer reads, although callq marks them for pgpool. It may choose for each connection
// anew.
func reads(ctx context.Context, pool schema.DB) ([]Finding, error) {
	for range 4 {
		var behind bool
		conn, err := schema.Acquire(ctx, pool)
		if err != nil {
			return nil, err
		}
		defer conn.Release()
		if err := conn.QueryRow(ctx, `SELECT current_setting('in_hot_standby')::boolean`).Scan(&behind); err != nil {
			return nil, err
		}
		if !behind {
			continue
		}
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadWrite})
		if _, refused := errors.AsType[*pgconn.PgError](err); refused {
			return nil, nil // all of it is a standby, which settingsSQL finds
		} else if err != nil {
			return nil, err
		}
		return judge(false, "", "a load balancer sends reads to a standby: calls come late, and some that were just inserted are not found",
			"have it send callq's reads to the primary; in pgpool.conf: load_balance_mode = off, or "+
				"database_redirect_preference_list = 'DATABASE:primary'"), tx.Rollback(ctx)
	}
	return nil, nil
}

// Redis examines Redis. It returns an error only if Redis cannot be reached.
func Redis(ctx context.Context, client redis.UniversalClient) ([]Finding, error) {
	info, err := client.Info(ctx, "server", "memory").Result()
	if err != nil && !redis.HasErrorPrefix(err, "ERR") && !redis.HasErrorPrefix(err, "NOPERM") { // a stand-in may not know the sections
		return nil, fmt.Errorf("ask Redis: %w", err)
	}
	return append(readRedis(info), of("redis hand-over", takes(handoff.Probe(ctx, client, "callq:doctor")))...), nil
}

// takes judges whether a script may write.
func takes(err error) []Finding {
	return judge(err == nil, "a script may write", fmt.Sprintf("Redis takes no hand-over: %v", err),
		"give it memory, or callq's login the right to run scripts and to write asynq:*; a cluster needs all its parts")
}

// readRedis judges the answer to INFO. Managed servers often refuse CONFIG, so doctor does not ask for that.
func readRedis(text string) []Finding {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
	}
	version := []Finding{{Level: Note, What: "Redis does not tell its version", Fix: "see that it is 6.2 or newer; a login may be refused INFO"}}
	var major, minor int
	if is := info["redis_version"]; is != "" {
		_, _ = fmt.Sscanf(is, "%d.%d", &major, &minor)
		version = judge(major > 6 || major == 6 && minor >= 2, is, "Redis is "+is, "upgrade it to 6.2 or newer")
	}
	eviction := []Finding{{Level: Note, What: "Redis does not tell its maxmemory-policy", Fix: "see that it is noeviction"}}
	if is := info["maxmemory_policy"]; is != "" {
		eviction = judge(is == "noeviction", is,
			"maxmemory-policy is "+is+": calls that were handed over may be evicted, and are then late by seconds",
			"redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf")
	}
	return append(of("redis version", version), of("redis eviction", eviction)...)
}
