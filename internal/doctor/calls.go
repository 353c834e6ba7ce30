package doctor

import (
	"context"
	"fmt"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/recovery"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/words"
)

// Calls and attempts that are stuck, or end badly.

const recoverFix = "callq maintain sweep"

// Open attempts that recovery should have closed: dispatchers run it with each tick.
const overdueSQL = `
SELECT 'problem' AS level, format(what, count(*)) AS what, fix
FROM callq.call_open o
LEFT JOIN callq.call_queues q ON q.name = o.queue
CROSS JOIN (SELECT clock_timestamp() - interval '10 seconds' AS late,
    'start a dispatcher (callq serve, callq dispatch), or ` + recoverFix + ` once; if dispatchers are alive, see their logs'
    AS recover
) x
CROSS JOIN LATERAL (VALUES
    (started_at IS NOT NULL AND deadline < late,
        'attempts that are past their deadline and still open, for their workers were lost: %s', recover),
    (started_at IS NULL AND start_by < late AND EXISTS (SELECT FROM callq.call_workers WHERE callq.alive(heartbeat_at)),
        'attempts that were handed over, not started in time, and still hold their units: %s', recover),
    (task <> 'http' AND deadline > clock_timestamp() AND started_at < late - timeout,
        'handlers that run for longer than their queue''s timeout, and hold slots and units though their contexts have ended: %s', 'have them return when ctx ends, raise the queue''s timeout, or restart their workers: '
        'callq calls list --status dispatched')
) f (applies, what, fix)
WHERE applies
GROUP BY what, fix`

// Transactions that stay open on rows of running calls: the outcomes of those cannot be written, so their units and
// slots stay in use. To change or lock a row writes the transaction's id there as xmax, and holds a lock on that
// id. Several who share a row are a multixact: xmax does not say that it is one, but those that exist lie in a range.
// callq's own take less than two seconds, and are not named where the age of others' transactions is hidden.
const heldSQL = `
SELECT CASE WHEN age IS NULL THEN 'note' ELSE 'problem' END AS level,
    CASE WHEN age IS NULL
    THEN format('%s %s (%s) holds rows of running calls, %s (%s); for how long, this role may not see', kind, name, who, calls, ids)
    ELSE format('%s %s (%s) has held rows of running calls, %s (%s), for %ss%s; their outcomes cannot be written meanwhile',
        kind, name, who, calls, ids, round(extract(epoch FROM age)), '; it is ' || nullif(does, '')) END AS what,
    CASE WHEN age IS NULL THEN 'run doctor as the tables'' owner, or GRANT pg_monitor to its role'
    WHEN kind = 'session' THEN format('commit it, or SELECT pg_terminate_backend(%s);', name)
    ELSE format('commit it, or ROLLBACK PREPARED %L;', name) END AS fix
FROM (
    SELECT kind, name, who, does, age, count(DISTINCT id) AS calls, array_to_string((array_agg(DISTINCT id))[:10], ', ') AS ids
    FROM (
        SELECT r.id, CASE WHEN p.gid IS NULL THEN 'session' ELSE 'prepared transaction' END AS kind,
            coalesce(p.gid, a.pid::text) AS name,
            coalesce(p.owner::text, concat_ws(', ', a.usename, nullif(a.application_name, ''))) AS who,
            concat_ws(': ', a.state, left(regexp_replace(a.query, '\s+', ' ', 'g'), 80)) AS does,
            clock_timestamp() - coalesce(p.prepared, a.xact_start) AS age, a.application_name AS application
        FROM (
            SELECT q.id, q.xmax AS holder FROM callq.call_open o JOIN public.call_queue q ON q.id BETWEEN o.call_id AND o.call_id
            UNION ALL
            SELECT call_id, xmax FROM callq.call_open
        ) r
        CROSS JOIN LATERAL (
            SELECT r.holder AS xid
            UNION ALL
            SELECT m.xid FROM pg_get_multixact_members(CASE
                WHEN mxid_age(r.holder) BETWEEN 1 AND (SELECT max(mxid_age(datminmxid)) FROM pg_database) THEN r.holder END) m
        ) h
        JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = h.xid AND l.mode = 'ExclusiveLock' AND l.granted
        LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN pg_prepared_xacts p ON p.transaction = h.xid
    ) h
    WHERE age > interval '2 seconds' OR age IS NULL AND application <> 'callq'
    GROUP BY kind, name, who, does, age
    ORDER BY age DESC
    LIMIT 10
) h`

// Calls that recovery leaves alone, because a statement that includes them fails.
const setAsideSQL = `
SELECT 'problem' AS level, format('call %s: %s', id, btrim(left(error_message, 200))) AS what,
    format('see what is wrong with it (SELECT * FROM public.call_queue WHERE id = %s) and with the table''s triggers and constraints; '
        'dispatchers try again each minute', id) AS fix
FROM (
    SELECT q.id, q.error_message FROM callq.call_open o JOIN public.call_queue q ON q.id BETWEEN o.call_id AND o.call_id
    UNION ALL
    SELECT id, error_message FROM public.call_queue WHERE expires_at <= clock_timestamp() AND status IN ('new', 'error')
) c
WHERE starts_with(error_message, '` + recovery.IsolatedMessage + `')
ORDER BY id
LIMIT 10`

func orphans(ctx context.Context, pool schema.DB) ([]Finding, error) {
	o, err := backlog.FindOrphans(ctx, pool)
	what := fmt.Sprintf("%s waiting in no flow, and %s that %s not add up: no claim finds all of those calls",
		words.Count(o.Calls, "call"), words.Count(o.Flows, "flow"), words.Verb(o.Flows, "does", "do"))
	return judge(o == backlog.Orphans{}, "", what, recoverFix), err
}

// Calls that are dispatched without an open attempt: somebody removed it. What it used of its limits is forgotten, and
// it is not known whether it was sent; so nothing repairs that by itself.
const withoutAttemptSQL = `
SELECT 'problem' AS level, format('calls that are dispatched without an open attempt, so that nothing will end them: %s (%s)', n, ids) AS what,
    format('to make them (again): UPDATE public.call_queue SET status = ''new'' WHERE id IN (%s); to give them up: '
        'SET status = ''failed'', failed_at = now(), finished_at = now(), unique_key = NULL', ids) AS fix
FROM (
    SELECT count(*) AS n, array_to_string((array_agg(id ORDER BY id))[:10], ', ') AS ids
    FROM public.call_queue q
    WHERE status = 'dispatched' AND NOT EXISTS (SELECT FROM callq.call_open o WHERE o.call_id = q.id)
) q
WHERE n > 0`

// Queues whose requests are often not sent, because their workers took longer than send_within. The attempts of the
// newest calls stand for the latest ones: the ledger has no index by time.
const lateSQL = `
SELECT 'problem' AS level,
    format('of the last %s attempts of queue %s, %s were not sent: the worker was too late', all_of, left(queue, 160), late) AS what,
    coalesce('raise send_within of limit ' || l.name || ', which is ' || l.send_within || ', in the configuration; or ', '')
        || 'callq work on more machines' AS fix
FROM (
    SELECT queue, count(*) AS all_of, count(*) FILTER (WHERE outcome = 'not_sent') AS late
    FROM (SELECT queue, outcome, started_at, finished_at FROM public.call_attempts ORDER BY call_id DESC, attempt DESC LIMIT 10000) newest
    WHERE finished_at > clock_timestamp() - interval '1 hour' AND started_at IS NOT NULL
    GROUP BY queue
) a
LEFT JOIN LATERAL (
    SELECT name, send_within FROM callq.call_limits WHERE a.queue = ANY(queues) ORDER BY send_within, name LIMIT 1
) l ON true
WHERE a.late >= 10 AND a.late * 20 >= a.all_of
ORDER BY a.late DESC
LIMIT 10`

// Hosts that have answered nothing since requests to them were given up: these hold units.
const inDoubtSQL = `
SELECT CASE WHEN since < clock_timestamp() - interval '1 minute' THEN 'problem' ELSE 'note' END AS level,
    format('%s has answered nothing since %s: requests to it, %s, may still be read, and hold units of limit %s',
        left(host, 160), date_trunc('second', since), n, limits) AS what,
    'see whether it is up: it gets one request each arrive_within, and once it answers one all come free; '
        'if you know that none of them is on its way, callq limits open NAME --reason …' AS fix
FROM (
    SELECT host, min(sent_by) AS since, count(*) AS n,
        (SELECT left(string_agg(DISTINCT c ->> 'limit', ', '), 160)
         FROM public.call_attempts b CROSS JOIN LATERAL jsonb_array_elements(b.charged) c
         WHERE b.host = a.host AND b.arrived_by = ` + limit.UnknownSQL + `) AS limits
    FROM public.call_attempts a
    WHERE arrived_by = ` + limit.UnknownSQL + `
    GROUP BY host
    ORDER BY n DESC
    LIMIT 10
) h`

// Requests that counted as arrived without a proof, among the newest attempts: they had no answer for arrive_within; or they were
// answered later than a slack that somebody vouches for, so the API is slow, or it stood still and has read too much since.
const unprovenSQL = `
WITH newest AS (
    SELECT c ->> 'limit' AS name, a.proof, a.started_at + a.took_ms * interval '1 ms' - a.arrived_by AS late
    FROM (SELECT * FROM public.call_attempts ORDER BY call_id DESC, attempt DESC LIMIT 10000) a
    CROSS JOIN LATERAL jsonb_array_elements(a.charged) c
    WHERE a.proof IN ('slack', 'assumed') AND a.finished_at > clock_timestamp() - interval '1 hour'
)
SELECT 'note' AS level, format('requests that counted as arrived after arrive_within, without an answer of their host: %s, under limit %s',
        count(*), left(name, 160)) AS what,
    'nothing, if it was down; callq verify says when it stood still' AS fix
FROM newest WHERE proof = 'assumed' GROUP BY name
UNION ALL
SELECT 'note', format('requests that were answered long after slack has them read: %s, under limit %s, by up to %s s',
        count(*), left(name, 160), round(extract(epoch FROM max(late)), 1)),
    'nothing, if the API is slow; if it stood still, it has read more than its limit since: leave slack out of the limit''s configuration'
FROM newest WHERE proof = 'slack' AND late > interval '1 second' GROUP BY name`

// Limits under which the API refused more than one in a hundred of the newest attempts, though callq kept to them; and those that it
// has closed.
const refusedSQL = `
WITH newest AS (
    SELECT c ->> 'limit' AS name, a.outcome = 'refused' OR a.code = 429 AS refused
    FROM (SELECT * FROM public.call_attempts ORDER BY call_id DESC, attempt DESC LIMIT 10000) a
    CROSS JOIN LATERAL jsonb_array_elements(a.charged) c
    JOIN callq.call_limits l ON l.name = c ->> 'limit' AND l.window_size > '0'
    WHERE a.finished_at > clock_timestamp() - interval '1 hour'
)
SELECT 'problem' AS level, format('the API refused %s of the last %s requests under limit %s, which callq kept. It counts otherwise: docs/apis.md', refused, all_of, left(name, 160)) AS what,
    format('give the limit the algorithm that fits the API (callq limits advise %s), or less: others may use it too', left(name, 160)) AS fix
FROM (SELECT name, count(*) FILTER (WHERE refused) AS refused, count(*) AS all_of FROM newest GROUP BY name) n
WHERE refused >= 10 AND refused * 100 > all_of
UNION ALL
SELECT 'note', format('calls under limit %s go evenly until %s: the API refused some that came together', left(name, 160), date_trunc('second', even_until)),
    format('callq limits advise %s names the limit that fits the API', left(name, 160))
FROM callq.call_limits WHERE even_until > clock_timestamp()
UNION ALL
SELECT 'note', format('limit %s%s is closed until %s: %s', name, ', key ' || nullif(key, ''), date_trunc('second', until), reason),
    format('nothing; if you know that the API takes requests again, callq limits resume %s%s', name, ' --key ' || nullif(key, ''))
FROM (SELECT * FROM callq.call_pauses WHERE until > clock_timestamp() AND spell IS NOT NULL ORDER BY at DESC LIMIT 5) p`

// Ended calls that hold a unique key: they were written while callq's triggers were off, and no call of that key can be inserted.
const endedKeysSQL = `
SELECT 'problem' AS level, format('ended calls that hold their unique key, so that no other call can have it: %s (%s)', n, ids) AS what,
    format('UPDATE public.call_queue SET unique_key = NULL WHERE id IN (%s); see that the triggers of call_queue are enabled', ids) AS fix
FROM (
    SELECT count(*) AS n, array_to_string((array_agg(id ORDER BY id))[:10], ', ') AS ids
    FROM public.call_queue
    WHERE unique_key IS NOT NULL AND status IN ('done', 'failed', 'cancelled')
) q
WHERE n > 0`

// Waiting calls that cost more than a limit has in all since an operator set it: they wait for the configuration's rate.
const tooDearSQL = `
SELECT 'problem' AS level,
    format('waiting calls that cost more than a limit has in all since an operator set it: %s, under limit %s (%s)', n, left(name, 160), ids) AS what,
    format('callq limits reset %s, or callq calls cancel %s', left(name, 160), replace(ids, ',', '')) AS fix
FROM (
    SELECT l.name, count(*) AS n, array_to_string((array_agg(q.id ORDER BY q.id))[:10], ', ') AS ids
    FROM callq.call_limits l
    JOIN callq.call_effective q ON q.queue = ANY (l.queues) AND q.status IN ('new', 'error') AND q.cost > coalesce((l.shape ->> 'burst')::bigint, l.rate)
    WHERE l.config IS NOT NULL AND l.count_cost
    GROUP BY l.name
) d`

// Rules that left calls as they were, as what they name in call_data is not there or unfit.
const routesSQL = `
SELECT 'problem' AS level, format('a route left %s, the last at %s: %s (%s)',
        CASE WHEN sum(d.failed) = 1 THEN '1 call as it was' ELSE sum(d.failed) || ' calls as they were' END, date_trunc('second', max(d.at)), left(d.rule, 160),
        (array_agg(d.error ORDER BY d.at DESC) FILTER (WHERE d.error IS NOT NULL))[1]) AS what,
    'have its match take such calls out, or producers write what it names; callq routes test ID tells of a call' AS fix
FROM callq.call_routed d JOIN callq.call_routes r USING (rule)
GROUP BY d.rule
HAVING sum(d.failed) > 0 AND max(d.at) FILTER (WHERE d.failed > 0) > clock_timestamp() - interval '1 day'`
