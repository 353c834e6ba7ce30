-- The policy in force, as applied from config.yaml, what its limits have used, and the processes.

-- +goose Up

-- One row per limit. A claim locks the rows of all limits involved, in name order, before it
-- reads anything else from them.
CREATE TABLE callq.call_limits (
    name           text        PRIMARY KEY,
    version        bigint      NOT NULL,
    rate           bigint      NOT NULL, -- units per window
    window_size    interval    NOT NULL, -- for how long a unit counts, at most; 0: rate is how many may run at once
    shape          jsonb       NOT NULL DEFAULT '{}' -- the algorithm and what it needs; {}: a sliding window
        CHECK (coalesce(shape ->> 'algorithm', 'sliding_window') IN ('sliding_window', 'fixed_window', 'token_bucket', 'leaky_bucket', 'sliding_window_counter')),
    bucket_width   interval    NOT NULL CHECK (bucket_width > '0'), -- of call_usage (limit.Rate.Bucket)
    per_key        boolean     NOT NULL DEFAULT false, -- each key has a rate of its own
    overrides      jsonb       NOT NULL DEFAULT '{}', -- keys that have another rate: units
    count_cost     boolean     NOT NULL DEFAULT false, -- a call takes its cost, not 1
    anchor         text,       -- NULL: start for the task http, finish for custom handlers
    slack          interval    NOT NULL,
    proof          text        NOT NULL DEFAULT 'slack', -- what shows that a request without an answer has arrived (limit.Proof)
    arrive_within  interval    NOT NULL DEFAULT '10 s', -- without that it counts as arrived after so long
    send_within    interval    NOT NULL,
    hosts          text[]      NOT NULL DEFAULT '{}', -- whose Retry-After closes it; {}: anybody's
    retry_after    interval    NOT NULL DEFAULT '1 hour', -- for how long at most; 0: never
    headers        jsonb       NOT NULL DEFAULT '{}', -- which say so beside docs/apis.md's (wait), and which of those do not (off)
    trust          text        NOT NULL DEFAULT 'lower', -- what remains at the API lowers what is given out; or 'ignore'
    shares         jsonb       NOT NULL DEFAULT '{}', -- parts of its units, in percent, by name (limit.Shares); {}: whoever comes
    queues         text[]      NOT NULL,
    applied_at     timestamptz NOT NULL,
    applied_by     text        NOT NULL,
    -- From when call_usage holds every charge; NULL: not yet, and the limit is closed until then.
    complete_since timestamptz,
    -- The epoch that the limit last entered.
    epoch          text        NOT NULL,
    -- The configuration's rate (limit.Rate) while an override (`limits set`) is in force instead; else NULL.
    config         jsonb,
    -- What may be missing from call_usage had arrived by missing_until. After a failover or restore at known_at, what was
    -- charged by then and since bounds it: the rest of the rate counts as used, less known_less, by which it was lowered
    -- since. If known_at is NULL, nothing bounds it: the limit is closed for as long as it may count.
    missing_until  timestamptz,
    known_at       timestamptz,
    known_less     bigint      NOT NULL DEFAULT 0,
    even_until     timestamptz -- the API refused calls that came together: until then they go evenly (limit.Rate.EvenGap)
) WITH (fillfactor = 50);

-- Every version of every limit, for the audit and for verify.
CREATE TABLE callq.call_limit_versions (
    limit_name     text        NOT NULL,
    version        bigint      NOT NULL,
    effective_from timestamptz NOT NULL,
    rate           bigint,     -- NULL: the limit was removed
    window_size    interval,
    shape          jsonb       NOT NULL DEFAULT '{}',
    per_key        boolean     NOT NULL DEFAULT false,
    overrides      jsonb       NOT NULL DEFAULT '{}',
    count_cost     boolean     NOT NULL DEFAULT false,
    anchor         text,
    slack          interval,
    proof          text        DEFAULT 'slack',
    arrive_within  interval    DEFAULT '10 s',
    send_within    interval,
    queues         text[],
    applied_by     text        NOT NULL,
    PRIMARY KEY (limit_name, version)
);

-- One row per queue: which limits its calls use, and how they are retried.
CREATE TABLE callq.call_queues (
    name         text        PRIMARY KEY,
    limits       text[]      NOT NULL,
    label        text        NOT NULL DEFAULT '', -- only workers that carry it; '': any
    max_attempts integer     NOT NULL,
    backoff_min  interval    NOT NULL,
    backoff_max  interval    NOT NULL,
    timeout      interval    NOT NULL,
    on_lost      text        NOT NULL,
    hours        text        NOT NULL DEFAULT '', -- outside of them nothing is claimed (internal/hours)
    store        text        NOT NULL DEFAULT '', -- which answers are kept: all, errors, none; '': the worker's setting
    store_max    bigint      NOT NULL DEFAULT 65536, -- bytes of an answer's body that are kept
    store_for    interval    NOT NULL DEFAULT '0', -- for how long; 0: as the call
    served_key   text        NOT NULL DEFAULT '', -- the key that a claim served last: the next begins after it
    needs        jsonb       NOT NULL DEFAULT '{}', -- units of budgets that each call draws: {"search-api": 3}
    on_refused   text        NOT NULL DEFAULT 'close', -- an answer that names a limit closes it and is no failure; or 'retry'
    max_refusals integer     NOT NULL DEFAULT 1000 -- of a call
) WITH (fillfactor = 50);

-- One row per budget in Redis, which handlers draw on while they run. Workers read it.
CREATE TABLE callq.call_budgets (
    name         text        PRIMARY KEY,
    rate         bigint      NOT NULL, -- units per window
    window_size  interval    NOT NULL,
    burst        bigint      NOT NULL, -- what a token bucket holds at most
    on_outage    text        NOT NULL, -- while Redis is away a draw waits ('closed') or goes through ('open')
    applied_at   timestamptz NOT NULL,
    applied_by   text        NOT NULL,
    shape        jsonb       NOT NULL DEFAULT '{}' -- algorithm, keys and shards; {}: a token bucket that all keys share
);

-- Every policy (limits, queues and budgets) that was ever applied. The one with the largest number is in force.
CREATE TABLE callq.call_policies (
    hash       text        PRIMARY KEY,
    number     bigint      NOT NULL UNIQUE, -- a policy that is applied again gets the next one
    applied_at timestamptz NOT NULL,
    applied_by text        NOT NULL
);

-- Whether the process that wrote this heartbeat is alive: it writes one every 2 seconds, and may miss three. Plain SQL, so that
-- Postgres inlines it.
CREATE FUNCTION callq.alive(heartbeat_at timestamptz) RETURNS boolean LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT heartbeat_at > clock_timestamp() - interval '6 seconds'
$$;

-- Dispatchers.
CREATE TABLE callq.call_dispatchers (
    id      text        PRIMARY KEY,
    name    text        NOT NULL, -- for people: host/pid
    policy  text        NOT NULL, -- the hash of its own file
    heartbeat_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- What may not be claimed until then: a queue, a limit, or of either the calls of one key (key ''
-- is all of them). Written under the lock of the queue's or limit's row, and read by claims under it.
CREATE TABLE callq.call_pauses (
    what   text        NOT NULL, -- 'queue' or 'limit'
    name   text        NOT NULL,
    key    text        NOT NULL DEFAULT '',
    until  timestamptz NOT NULL,
    reason text        NOT NULL,
    at     timestamptz NOT NULL,
    by     text        NOT NULL,
    -- An API closed the limit: for so long it does where it names no time. From until on one call goes as a probe before the
    -- others, and the row stays until that had an answer. NULL: it was paused by people.
    spell  interval,
    call_id   bigint, -- the probe, which is this attempt of this call; NULL: none has been claimed yet
    attempt   integer,
    probed_at timestamptz, -- when it was claimed
    PRIMARY KEY (what, name, key)
);

-- What APIs say of their own limits in answers that are none, per limit and, where the limit is per key, key: the latest.
CREATE TABLE callq.call_remotes (
    limit_name text        NOT NULL,
    key        text        NOT NULL DEFAULT '',
    most       bigint,      -- the API's limit; NULL: it does not say
    remaining  bigint,      -- what it has left
    reset_at   timestamptz, -- when that is as before; NULL: it does not say
    answered_at timestamptz NOT NULL, -- when it said so
    lowered    bigint,      -- what may be used until reset_at, where that is less than the rate; NULL: no less
    PRIMARY KEY (limit_name, key)
) WITH (fillfactor = 50);

CREATE INDEX call_remotes_lowered_idx ON callq.call_remotes (limit_name) WHERE lowered IS NOT NULL;

-- Who changed which limit, queue, budget or calls, how, and why.
CREATE TABLE callq.call_audit (
    id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    by     text        NOT NULL,
    what   text        NOT NULL, -- 'queue', 'limit', 'budget' or 'calls'
    name   text        NOT NULL, -- of calls: which, in the words of a search
    change text        NOT NULL,
    reason text        NOT NULL DEFAULT '',
    token  text                  -- of the form that asked for it: no form acts twice
);

CREATE UNIQUE INDEX call_audit_token_idx ON callq.call_audit (token) WHERE token IS NOT NULL;

-- Units used, per limit, key and time bucket, labelled with the bucket's end. A row belongs to
-- one connection (shard, its backend's pid): two that share one would deadlock.
CREATE TABLE callq.call_usage (
    limit_name text        NOT NULL,
    key        text        NOT NULL,
    bucket     timestamptz NOT NULL,
    shard      integer     NOT NULL,
    used       bigint      NOT NULL,
    PRIMARY KEY (limit_name, key, bucket, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

-- Hosts (host:port) with requests that have no answer and may still arrive. Workers say which of their requests to one was
-- written last and answered: what was written before has arrived. Recovery removes a host when nothing is in doubt any more.
CREATE TABLE callq.call_hosts (
    host        text        PRIMARY KEY,
    asked_at    timestamptz NOT NULL, -- when a request to it was last in doubt
    written_at  timestamptz, -- a request that was written then, or later,
    answered_at timestamptz, -- had its answer by then
    probed_at   timestamptz  -- when a request last counted as arrived without a proof
) WITH (fillfactor = 50);

-- Workers. http is the settings of a worker's task http, without the values of secrets; NULL: it does not take http. epoch is where
-- it last spoke. One that lived in another, former, tells after a failover whether this server lacks something that it was told was
-- written (internal/witness): lived_at is its heartbeat as it was found then.
CREATE TABLE callq.call_workers (
    id         text        PRIMARY KEY,
    pool       text        NOT NULL,
    tasks      text[]      NOT NULL,
    labels     text[]      NOT NULL,
    slots      integer     NOT NULL,
    started_at timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    http       jsonb,
    epoch      text        NOT NULL DEFAULT '',
    former     text,
    lived_at   timestamptz,
    lacks      boolean,
    CONSTRAINT call_workers_labels_check CHECK (cardinality(labels) <= 64 AND octet_length(array_to_string(labels, '')) <= 64 * 255)
) WITH (fillfactor = 50);

-- The failover epochs, as dispatchers saw them. verdict is whether anything that a former server had committed is missing here:
-- 'first' (there was none), 'whole' or 'missing'; NULL: workers are being asked. why is for people. What is missing was written after
-- lived_at, the latest heartbeat of a former server that this one has.
CREATE TABLE callq.call_epochs (
    epoch    text        PRIMARY KEY,
    seen_at  timestamptz NOT NULL,
    verdict  text        CHECK (verdict IN ('first', 'whole', 'missing')),
    why      text,
    lived_at timestamptz
);

-- Single facts. 'database': the database's id in Redis. 'max_data': the bound of call_data for enqueue_call. 'ledger': rows with
-- arrived_by up to "at" may have been purged. 'retention': it last ended without an error.
CREATE TABLE callq.call_meta (
    name     text PRIMARY KEY,
    position bigint,
    at       timestamptz
);

-- What one process at a time may do: who holds a row's lock does it (internal/policy/lock.go). Only daemons may lock a row, and
-- only the owner may add, change or remove one. held is never written: the right to update it is the right to lock the row.
CREATE TABLE callq.call_locks (
    name text    PRIMARY KEY,
    held boolean
);

INSERT INTO callq.call_locks (name) VALUES ('capacity'), ('apply');

-- Each time that a dispatcher saw Postgres's clock set, and by how much: forward, when windows are widened by that while
-- it lies within them; or back (less than 0), by no more than that. Times are Postgres's clock.
CREATE TABLE callq.call_clock_gains (
    id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL, -- when it was seen
    by interval    NOT NULL
);

-- Removes the versions that no attempt of the ledger, and no window, needs any more, and returns how many. The last of each
-- limit stays. No role may remove others, which verify goes by: so it runs as its owner, and takes no arguments. The
-- ledger is only read where something may go.
-- +goose StatementBegin
CREATE FUNCTION callq.purge_versions() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    keep timestamptz := clock_timestamp() - (SELECT 2 * coalesce(max(window_size), '0') + interval '10 minutes' FROM callq.call_limits);
    removed bigint;
BEGIN
    IF NOT EXISTS (
        SELECT FROM (SELECT lead(effective_from) OVER (PARTITION BY limit_name ORDER BY version) AS until FROM callq.call_limit_versions) c
        WHERE until < keep
    ) THEN
        RETURN 0;
    END IF;
    keep := least(keep, (SELECT min(claimed_at) FROM public.call_attempts), (SELECT min(claimed_at) FROM callq.call_open));
    WITH ended AS ( -- until when one, or one before it, was in force
        SELECT limit_name, version, max(until) OVER (PARTITION BY limit_name ORDER BY version) AS until
        FROM (SELECT limit_name, version, coalesce(lead(effective_from) OVER (PARTITION BY limit_name ORDER BY version), 'infinity') AS until
              FROM callq.call_limit_versions) c
    )
    DELETE FROM callq.call_limit_versions c USING ended e
    WHERE c.limit_name = e.limit_name AND c.version = e.version AND e.until < keep;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION callq.purge_versions() FROM PUBLIC;

-- Changes whenever a limit's row does: its xmin does, but the transactions that a failover lost have their numbers given out again.
CREATE FUNCTION callq.stamp(xmin xid, epoch text, known_at timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT concat_ws(' ', xmin, epoch, extract(epoch FROM known_at))
$$;

-- Moves the charges of attempts that arrived by the given times, to all limits or only one, and returns how many attempts they
-- are. The caller has locked their rows. A limit that counts otherwise by now was counted anew as it is (policy.Backfill). A limit
-- that an attempt was anchored to at its end counts it until then, and slack. Buckets are as in rule.bucket.
CREATE FUNCTION callq.settle(call_ids bigint[], attempts integer[], arrived timestamptz[], proof text, only_limit text)
RETURNS bigint LANGUAGE sql AS $$
    WITH charges AS MATERIALIZED (
        SELECT a.call_id, a.attempt, c.nth, c."limit" AS name, c.key, c.cost, m.was_unknown,
            CASE WHEN l.per_key IS NULL THEN c.key WHEN l.per_key THEN a.key ELSE '' END AS used_key,
            CASE WHEN l.count_cost IS NULL THEN c.cost WHEN l.count_cost THEN coalesce(a.settled, a.cost) ELSE 1 END AS used_cost,
            l.bucket_width AS width, l.window_size, l.known_at,
            CASE WHEN NOT m.was_unknown THEN c.until
                ELSE greatest(s.at, coalesce(l.slack, '1 minute') + CASE
                    WHEN l.window_size > '0' AND coalesce(l.anchor, CASE a.task WHEN 'http' THEN 'start' ELSE 'finish' END) = 'start'
                    THEN a.sent_by ELSE a.finished_at END) END AS until
        FROM unnest(call_ids, attempts, arrived) AS s (call_id, attempt, at)
        JOIN public.call_attempts a ON a.call_id = ANY (ARRAY[s.call_id]) AND a.attempt = s.attempt
        CROSS JOIN LATERAL ROWS FROM (
            jsonb_to_recordset(a.charged) AS ("limit" text, key text, cost bigint, until timestamptz)
        ) WITH ORDINALITY AS c ("limit", key, cost, until, nth)
        CROSS JOIN LATERAL (
            SELECT c.until = timestamptz '2200-01-01 00:00:00Z' AND coalesce(c."limit" = only_limit, true) AS was_unknown
        ) m
        LEFT JOIN callq.call_limits l ON l.name = c."limit"
    ), arrived AS (
        UPDATE public.call_attempts a
        SET arrived_by = e.arrived_by, proof = settle.proof, charged = e.charged
        FROM (
            SELECT call_id, attempt, max(until) AS arrived_by,
                jsonb_agg(jsonb_build_object('limit', name, 'key', key, 'cost', cost, 'until', until) ORDER BY nth) AS charged
            FROM charges GROUP BY call_id, attempt
        ) e
        WHERE a.call_id = ANY (ARRAY[e.call_id]) AND a.attempt = e.attempt
    ), released AS (
        UPDATE callq.call_usage u
        SET used = u.used - c.cost
        FROM (SELECT name, used_key AS key, sum(used_cost) AS cost FROM charges WHERE was_unknown AND used_cost > 0 GROUP BY 1, 2) c
        WHERE u.limit_name = ANY (ARRAY[c.name]) AND u.key = c.key AND u.bucket = timestamptz '2200-01-01 00:00:00Z' AND u.shard = 0
    ), charged AS (
        INSERT INTO callq.call_usage AS u (limit_name, key, bucket, shard, used)
        SELECT name, used_key, CASE WHEN window_size > '0' THEN date_bin(width, greatest(until, known_at + width), 'epoch') + width ELSE until END,
            pg_backend_pid(), sum(used_cost)
        FROM charges WHERE was_unknown AND used_cost > 0 AND window_size IS NOT NULL
        GROUP BY 1, 2, 3
        ORDER BY 1, 2, 3
        ON CONFLICT (limit_name, key, bucket, shard) DO UPDATE SET used = u.used + excluded.used
    )
    SELECT coalesce(cardinality(call_ids), 0)::bigint
$$;

-- +goose Down
DROP FUNCTION callq.settle(bigint[], integer[], timestamptz[], text, text);
DROP FUNCTION callq.stamp(xid, text, timestamptz);
DROP FUNCTION callq.purge_versions();
DROP TABLE callq.call_remotes, callq.call_epochs, callq.call_clock_gains, callq.call_hosts, callq.call_locks, callq.call_audit, callq.call_budgets, callq.call_pauses, callq.call_dispatchers, callq.call_policies, callq.call_meta, callq.call_workers, callq.call_usage,
    callq.call_queues, callq.call_limit_versions, callq.call_limits;
DROP FUNCTION callq.alive(timestamptz);
