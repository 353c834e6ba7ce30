-- Calls, their open attempts and the ledger. docs/design.md explains the shape of each.

-- +goose Up

-- The epoch: Postgres's system identifier and timeline. A failover or a restore makes a new one.
-- (After a promotion only the WAL's file name shows the new timeline at once.) To read it opens files. No
-- server changes it while it runs, so each session reads it once.
-- +goose StatementBegin
CREATE FUNCTION callq.epoch() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    epoch text := current_setting('callq.session_epoch', true);
BEGIN
    IF epoch <> '' THEN
        RETURN epoch;
    END IF;
    IF pg_is_in_recovery() THEN -- it can be read. Not kept: this session outlives a promotion
        RETURN (SELECT system_identifier FROM pg_control_system()) || '-' || upper(lpad(to_hex((SELECT timeline_id FROM pg_control_checkpoint())), 8, '0'));
    END IF;
    epoch := (SELECT system_identifier FROM pg_control_system()) || '-' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
    RETURN set_config('callq.session_epoch', epoch, false);
END $$;
-- +goose StatementEnd

-- One API call to make. Producers INSERT here; everything they may set has a default, and an
-- explicit NULL means that default. Narrow, hot columns first: call_data stays out of the way.
-- fillfactor 50 leaves room on the page, so that a claim and a finish are HOT updates (no index entry).
CREATE TABLE public.call_queue (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status        text        NOT NULL DEFAULT 'new',
    priority      smallint    DEFAULT 5,
    attempts      integer     NOT NULL DEFAULT 0,
    failed_count  integer     NOT NULL DEFAULT 0,
    max_attempts  integer,
    cost          bigint      DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    run_at        timestamptz DEFAULT now(),
    expires_at    timestamptz,
    dispatched_at timestamptz,
    finished_at   timestamptz,
    failed_at     timestamptz,
    queue         text        DEFAULT 'default',
    task          text        DEFAULT 'http',
    key           text        DEFAULT '',
    unique_key    text,
    ended_key     text, -- the unique key that an ended call had: a retry takes it back
    error_message text,
    call_data     jsonb       DEFAULT '{}',
    -- Set by an operator's retry: attempts up to this one no longer count, neither in failed_count nor as how the call
    -- ended. NULL: never retried.
    retried_after integer
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Calls with what an explicit NULL means. Postgres inlines it: a statement reads the table's indexes through it, and locks its rows.
CREATE VIEW callq.call_effective WITH (security_invoker) AS
SELECT id, status, coalesce(queue, 'default') AS queue, coalesce(task, 'http') AS task, coalesce(key, '') AS key,
    coalesce(priority, 5::smallint) AS priority, coalesce(cost, 1) AS cost, coalesce(run_at, created_at) AS run_at,
    coalesce(call_data, '{}') AS call_data, attempts, failed_count, max_attempts, retried_after, unique_key, ended_key, error_message,
    created_at, expires_at, dispatched_at, finished_at, failed_at
FROM public.call_queue;

-- No index may name what a claim, start or finish changes, not even in its predicate: their updates are
-- HOT. Waiting calls are found through the backlog (00003_backlog.sql).

-- Calls that may expire before they are claimed.
CREATE INDEX call_queue_expires_idx ON public.call_queue (expires_at) WHERE expires_at IS NOT NULL;

-- Dead letters, listed and counted by queue without reading other calls. failed_at is set only when a call
-- fails for good.
CREATE INDEX call_queue_failed_idx ON public.call_queue (failed_at) INCLUDE (queue) WHERE failed_at IS NOT NULL;

-- unique_key is NULL once the call has ended, so that it is unique among unfinished calls.
CREATE UNIQUE INDEX call_queue_unique_idx ON public.call_queue (coalesce(queue, 'default'), unique_key)
    WHERE unique_key IS NOT NULL;

-- A queue, task or key beyond 255 bytes is refused: an index takes at most 2,704 bytes, and nothing else searches for such a name. So
-- is a max_attempts that never ends. An INSERT is checked where its calls enter the inbox, an UPDATE in callq.call_changed
-- (00003_backlog.sql). Each statement parses a CHECK, or a trigger's condition, anew: two CHECKs for this took a fifth more time than
-- a single INSERT without (30.4 against 25.4 µs; one CHECK for both 28.8).
-- +goose StatementBegin
CREATE FUNCTION callq.refuse_call(queue text, task text, key text, max_attempts integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF max_attempts > 1000 THEN
        RAISE EXCEPTION 'max_attempts is %, more than 1000', max_attempts
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Nothing was written. NULL is what the queue says.';
    END IF;
    RAISE EXCEPTION '% is longer than 255 bytes', CASE
            WHEN octet_length(queue) > 255 THEN 'queue'
            WHEN octet_length(task) > 255 THEN 'task'
            WHEN octet_length(key) > 255 THEN 'key'
            ELSE 'unique_key'
        END
        USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Nothing was written. Shorten it; of a text that has to stay unique, take a digest, such as md5(...).';
END $$;
-- +goose StatementEnd

-- Whether these are within their bounds; else it refuses them. Plain SQL, so that Postgres inlines it.
CREATE FUNCTION callq.bounded(queue text, task text, key text, unique_key text, max_attempts integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT CASE WHEN octet_length(queue) > 255 OR octet_length(task) > 255 OR octet_length(key) > 255 OR octet_length(unique_key) > 255
        OR max_attempts > 1000 THEN callq.refuse_call(queue, task, key, max_attempts) ELSE true END
$$;

-- One row per open attempt: inserted by the claim, updated by the start, deleted by whatever
-- closes the attempt. A call has at most one, which its primary key enforces. limits, keys and
-- costs run in parallel: what the attempt is charged to. What the start sets stands last, so that the
-- WAL holds no more of the row than that. batch is of the attempts that one claim opened; the numbers rise
-- in the order of the claims' commits (internal/claim/scan.go). acked_at is when the API's machine
-- acknowledged all of the request; overtaken_at when it, or one that was written to the same host after that, was answered.
-- NULL: unknown. rooms and gaps, parallel to limits, are of the attempts of a run, which is a message of which one worker has all: of
-- a limit that it keeps to itself, how many units it may use at once, and how long after its arrival each may be used again. A
-- run's worker sets token on all rows of the message before it starts any. shares is of which share of a limit it is: {"llm": "chat"}.
CREATE TABLE callq.call_open (
    call_id     bigint      PRIMARY KEY,
    attempt     integer     NOT NULL,
    message_no   integer     NOT NULL,
    redeliveries      integer     NOT NULL DEFAULT 0,
    batch       bigint      NOT NULL,
    cost        bigint      NOT NULL,
    claimed_at  timestamptz NOT NULL,
    handed_at   timestamptz NOT NULL,
    start_by    timestamptz NOT NULL,
    send_within interval,
    epoch       text        NOT NULL,
    pool        text        NOT NULL,
    queue       text        NOT NULL,
    task        text        NOT NULL,
    key         text        NOT NULL,
    limits      text[]      NOT NULL,
    keys        text[]      NOT NULL,
    costs       bigint[]    NOT NULL,
    rooms       bigint[],
    gaps        interval[],
    shares      jsonb,
    token       bigint,
    started_at  timestamptz,
    deadline    timestamptz,
    worker      text,
    acked_at    timestamptz,
    overtaken_at timestamptz
) WITH (fillfactor = 35, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX call_open_batch_idx ON callq.call_open (batch);

CREATE SEQUENCE callq.call_batch_seq;

-- callq.occupied_until is until when an open attempt occupies units of a limit. One that is anchored at its start occupies them
-- until the latest moment at which its request can reach the API: limit.Arrival.Until for an attempt that has not
-- ended. 5 seconds is limit.ResendMost. Every other one occupies them while it is open, which is 'infinity': it has not
-- started; it has no send_within, so no gate bounds its request; nothing proves yet that it has arrived; or it is from before a
-- failover, and is charged when it is recovered. Plain SQL over scalars: Postgres inlines it.
CREATE FUNCTION callq.occupied_until(task text, epoch text, started_at timestamptz, send_within interval, acked_at timestamptz,
    overtaken_at timestamptz, limit_anchor text, limit_epoch text, slack interval, proof text)
RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN started_at IS NULL OR send_within IS NULL OR epoch <> limit_epoch OR proof = 'later' AND overtaken_at IS NULL
            OR coalesce(limit_anchor, CASE task WHEN 'http' THEN 'start' ELSE 'finish' END) <> 'start' THEN 'infinity'
        WHEN proof = 'later' THEN greatest(overtaken_at, started_at + send_within + slack)
        WHEN proof = 'answer' OR acked_at IS NULL THEN started_at + send_within + interval '5 seconds' + slack
        ELSE greatest(acked_at, started_at + send_within + slack) END
$$;

-- What a close was worked out from has changed meanwhile: nothing of it is done.
-- +goose StatementBegin
CREATE FUNCTION callq.changed() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'attempts or limits have changed' USING ERRCODE = 'serialization_failure';
END $$;
-- +goose StatementEnd

-- The ledger: one row per attempt, written once, when the attempt closes. arrived_by is the
-- latest moment at which its request can have reached the API (NULL: it was never sent);
-- charged is, per limit, key and cost, until when the charge counts. cost is what was claimed, settled
-- what the handler reported (NULL: nothing; then cost counts). requests is what the write gate let
-- through (NULL if a custom handler sent by other means, or the worker was lost). code is the HTTP status that came back
-- (NULL: no answer); took_ms how long that took, or for how long a custom handler ran. host and sent_by stand where there was no
-- answer: by sent_by TCP had brought the request to the host, or never will. Until something proves that it has arrived,
-- arrived_by is in the year 2200, which is limit.Unknown. proof is what arrived_by rests on: NULL, its own end; else limit.Proof, or
-- 'assumed'. run is the batch of an attempt that was one of a run; its started_at is when its turn had come, unless it was lost;
-- NULL: it was not sent. shares is as in callq.call_open.
CREATE TABLE public.call_attempts (
    call_id     bigint      NOT NULL,
    attempt     integer     NOT NULL,
    requests    smallint,
    code        smallint,
    took_ms     integer,
    cost        bigint      NOT NULL,
    settled     bigint,
    claimed_at  timestamptz NOT NULL,
    started_at  timestamptz,
    arrived_by  timestamptz,
    finished_at timestamptz NOT NULL,
    outcome     text        NOT NULL,
    queue       text        NOT NULL,
    task        text        NOT NULL,
    key         text        NOT NULL,
    worker      text,
    error       text,
    charged     jsonb       NOT NULL,
    result      jsonb,
    host        text,
    sent_by     timestamptz,
    proof       text,
    run         bigint,
    shares      jsonb,
    PRIMARY KEY (call_id, attempt)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

-- Attempts whose answer was no success, listed by their status without reading the others.
CREATE INDEX call_attempts_refused_idx ON public.call_attempts (code, call_id) WHERE code NOT BETWEEN 200 AND 299;

-- What ended of late.
CREATE INDEX call_attempts_finished_idx ON public.call_attempts (finished_at);

-- Attempts that may still arrive.
CREATE INDEX call_attempts_unproven_idx ON public.call_attempts (host, sent_by) WHERE arrived_by = timestamptz '2200-01-01 00:00:00Z';

-- What retention removes of answers that are kept for a time of their own.
CREATE INDEX call_attempts_result_idx ON public.call_attempts (queue, finished_at) WHERE result IS NOT NULL;

-- +goose Down
DROP VIEW callq.call_effective;
DROP TABLE public.call_attempts, callq.call_open, public.call_queue;
DROP SEQUENCE callq.call_batch_seq;
DROP FUNCTION callq.bounded(text, text, text, text, integer);
DROP FUNCTION callq.refuse_call(text, text, text, integer);
DROP FUNCTION callq.occupied_until(text, text, timestamptz, interval, timestamptz, timestamptz, text, text, interval, text);
DROP FUNCTION callq.changed();
DROP FUNCTION callq.epoch();
