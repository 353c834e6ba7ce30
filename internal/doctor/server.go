package doctor

// Settings of Postgres that callq depends on: the value that is bad (” for a rule of its own, below), and the good
// one. callq's connections set some for themselves; these are what producers and Postgres's own processes get.
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
    ('default_transaction_isolation', '', '''read committed''', 'problem', 'callq''s statements count on read committed'),
    ('default_transaction_read_only', '', 'off', 'problem', 'nothing can be inserted or claimed'),
    ('statement_timeout', '', '0', 'note', 'retention and vacuum may be cut short')
) s (name, bad, good, level, why) ON s.name = c.name
WHERE CASE c.name
    WHEN 'default_transaction_isolation' THEN c.setting <> 'read committed'
    WHEN 'default_transaction_read_only' THEN c.setting = 'on' AND NOT pg_is_in_recovery()
    WHEN 'statement_timeout' THEN c.setting::bigint BETWEEN 1 AND 29999
    ELSE c.setting = s.bad END
UNION ALL
SELECT 'problem', format('Postgres is version %s', v / 10000), 'upgrade it to 14 or newer'
FROM current_setting('server_version_num') AS n, CAST(n AS integer) AS v WHERE v < 140000
UNION ALL
SELECT 'problem', 'this Postgres is a standby: nothing can be inserted or claimed', 'set postgres.url to the primary'
WHERE pg_is_in_recovery()`

// Whether Postgres has room for more connections.
const connectionsSQL = `
SELECT CASE WHEN scarce THEN 'problem' ELSE 'ok' END AS level, format('%s of %s in use', used, most) AS what,
    CASE WHEN scarce THEN 'raise max_connections (it needs a restart), make pools smaller (postgres.pool), or put pgbouncer before Postgres'
    ELSE '' END AS fix
FROM (SELECT count(*) AS used FROM pg_stat_activity WHERE backend_type = 'client backend') u
CROSS JOIN (
    SELECT current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer AS most
) m
CROSS JOIN LATERAL (SELECT used * 10 > most * 9 AS scarce) s`

// Whether a superuser owns callq's tables or functions: some functions run with their owner's rights.
const ownerSQL = `
SELECT 'note' AS level,
    format('callq''s tables or functions belong to a superuser, %s: who found a flaw in a function that runs as its owner '
        'would have the whole server', string_agg(DISTINCT quote_ident(r.rolname), ', ')) AS what,
    'give them to a role that is none: docs/operating.md, Roles, has the statements' AS fix
FROM (
    SELECT relowner AS owner FROM pg_class
    WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue')) AND relname LIKE 'call%'
    UNION ALL
    SELECT proowner FROM pg_proc
    WHERE pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue'))
      AND (proname LIKE 'callq\_%' OR proname = 'enqueue_call')
) o
JOIN pg_roles r ON r.oid = o.owner
WHERE r.rolsuper
HAVING count(*) > 0`
