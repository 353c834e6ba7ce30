-- The rules in force, as published from config.yaml, what they have used, and the workers.

-- +goose Up

-- One row per limit. A claim locks the rows of all limits involved, in name order, before it
-- reads anything else from them.
CREATE TABLE call_limits (
    name           text        PRIMARY KEY,
    version        bigint      NOT NULL,
    rate           bigint      NOT NULL, -- units per window
    window_size    interval    NOT NULL, -- for how long a unit counts, at most; 0: rate is how many may run at once
    shape          jsonb       NOT NULL DEFAULT '{}', -- the algorithm and what it needs; {}: a sliding window
    bucket_width   interval,   -- of call_usage; NULL: window_size / 200
    per_key        boolean     NOT NULL DEFAULT false, -- each key has a rate of its own
    overrides      jsonb       NOT NULL DEFAULT '{}', -- keys that have another rate: units
    count_cost     boolean     NOT NULL DEFAULT false, -- a call takes its cost, not 1
    anchor         text,       -- NULL: start for the http task, finish for handlers of one's own
    slack          interval    NOT NULL,
    send_within    interval    NOT NULL,
    queues         text[]      NOT NULL,
    published_at   timestamptz NOT NULL,
    published_by   text        NOT NULL,
    -- From when call_usage holds every charge; NULL: not yet, and the limit is shut until then.
    complete_since timestamptz,
    -- The epoch the limit was last claimed in.
    epoch          text        NOT NULL,
    -- What the config says, while an operator's `limits set` is in force instead; else NULL.
    config_rate    bigint,
    config_window  interval,
    config_shape   jsonb
) WITH (fillfactor = 50);

-- Every version of every limit, for the audit and for verify.
CREATE TABLE call_limit_changes (
    limit_name    text        NOT NULL,
    version       bigint      NOT NULL,
    in_force_from timestamptz NOT NULL,
    rate          bigint,     -- NULL: the limit was taken away
    window_size   interval,
    shape         jsonb       NOT NULL DEFAULT '{}',
    per_key       boolean     NOT NULL DEFAULT false,
    overrides     jsonb       NOT NULL DEFAULT '{}',
    count_cost    boolean     NOT NULL DEFAULT false,
    anchor        text,
    slack         interval,
    send_within   interval,
    queues        text[],
    published_by  text        NOT NULL,
    PRIMARY KEY (limit_name, version)
);

-- One row per queue: which limits its calls use, and how they are retried.
CREATE TABLE call_queues (
    name         text        PRIMARY KEY,
    limits       text[]      NOT NULL,
    on_label     text        NOT NULL DEFAULT '', -- only workers that carry it; '': any
    max_attempts integer     NOT NULL,
    backoff_min  interval    NOT NULL,
    backoff_max  interval    NOT NULL,
    timeout      interval    NOT NULL,
    on_lost      text        NOT NULL,
    hours        text[]      NOT NULL DEFAULT '{}', -- outside any of them nothing is claimed (internal/hours)
    served_key   text        NOT NULL DEFAULT '' -- the key that a claim served last: the next begins after it
) WITH (fillfactor = 50);

-- One row per budget: a token bucket in Redis, which handlers draw on while they run. Workers read it.
CREATE TABLE call_budgets (
    name         text        PRIMARY KEY,
    rate         bigint      NOT NULL, -- units per window
    window_size  interval    NOT NULL,
    burst        bigint      NOT NULL, -- what it holds at most
    on_outage    text        NOT NULL, -- while Redis is away a draw waits ('closed') or goes through ('open')
    published_at timestamptz NOT NULL,
    published_by text        NOT NULL
);

-- Every policy (limits, queues and budgets) that was ever applied. The one with the largest number is in force.
CREATE TABLE call_policies (
    hash       text        PRIMARY KEY,
    number     bigint      NOT NULL UNIQUE, -- a policy that is applied again gets the next one
    applied_at timestamptz NOT NULL,
    applied_by text        NOT NULL
);

-- Dispatchers that beat. Live for 6 s after a beat.
CREATE TABLE call_dispatchers (
    id      text        PRIMARY KEY,
    name    text        NOT NULL, -- for people: host/pid
    policy  text        NOT NULL, -- the hash of what its own file says
    beat_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- What may not be claimed until then: a queue, a limit, or of either the calls of one key (key ''
-- is all of them). Written under the lock of the queue's or limit's row, and read by claims under it.
CREATE TABLE call_pauses (
    what   text        NOT NULL, -- 'queue' or 'limit'
    name   text        NOT NULL,
    key    text        NOT NULL DEFAULT '',
    until  timestamptz NOT NULL,
    reason text        NOT NULL,
    at     timestamptz NOT NULL,
    by     text        NOT NULL,
    PRIMARY KEY (what, name, key)
);

-- Who changed which limit, queue or budget, and how.
CREATE TABLE call_audit (
    id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    by     text        NOT NULL,
    what   text        NOT NULL, -- 'queue', 'limit' or 'budget'
    name   text        NOT NULL,
    change text        NOT NULL
);

-- Units used, per limit, key and time bucket, labelled with the bucket's end. A row belongs to
-- one connection (shard, its backend's pid): two that share one would deadlock.
CREATE TABLE call_usage (
    limit_name text        NOT NULL,
    key        text        NOT NULL,
    bucket     timestamptz NOT NULL,
    shard      integer     NOT NULL,
    used       bigint      NOT NULL,
    PRIMARY KEY (limit_name, key, bucket, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

-- Workers that beat. Live for 6 s after a beat.
CREATE TABLE call_workers (
    id         text        PRIMARY KEY,
    pool       text        NOT NULL,
    tasks      text[]      NOT NULL,
    labels     text[]      NOT NULL,
    slots      integer     NOT NULL,
    started_at timestamptz NOT NULL,
    beat_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Where long walks stand. 'ledger': rows with arrived_by up to "at" may have been retired. 'epoch ' and
-- the epoch: it was entered at "at"; NULL: it is the first.
CREATE TABLE call_marks (
    name     text PRIMARY KEY,
    position bigint,
    at       timestamptz
);

-- +goose Down
DROP TABLE call_audit, call_budgets, call_pauses, call_dispatchers, call_policies, call_marks, call_workers, call_usage, call_queues, call_limit_changes, call_limits;
