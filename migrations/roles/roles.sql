-- Who may do what: four roles without a login, to be granted to those that log in:
--
--     CREATE ROLE shop LOGIN PASSWORD '…' IN ROLE callq_producer;
--
-- Run it as the owner of callq's tables, after each `callq migrate up`; any number of times. It makes the
-- roles that are missing, takes from them what they hold of callq's, and gives them what they need.

BEGIN;

DO $$
DECLARE
    owner   name         := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass('call_queue'));
    home    regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue'));
    roles   name[]       := ARRAY['callq_producer', 'callq_enqueuer', 'callq_daemon', 'callq_viewer'];
    wanted  name;
    missing text         := '';
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('callq roles'));
    IF owner IS NULL THEN
        RAISE EXCEPTION 'callq''s tables are not in this database: run `callq migrate up`' USING ERRCODE = '42P01';
    END IF;
    IF NOT pg_has_role(owner, 'USAGE') THEN
        RAISE EXCEPTION '% does not own callq''s tables: run this as %', current_user, owner USING ERRCODE = '42501';
    END IF;
    FOREACH wanted IN ARRAY roles LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = wanted);
        BEGIN
            EXECUTE format('CREATE ROLE %I', wanted);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL; -- made meanwhile, for another database
            WHEN insufficient_privilege THEN missing := missing || format('CREATE ROLE %I; ', wanted);
        END;
    END LOOP;
    IF missing <> '' THEN
        RAISE EXCEPTION '% may not create roles: let an administrator run %and then run this again',
            current_user, missing USING ERRCODE = '42501';
    END IF;
    FOREACH wanted IN ARRAY roles LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', home, wanted); -- no more than a warning, where it may not
        IF NOT has_schema_privilege(wanted, home::oid, 'USAGE') THEN
            missing := missing || format('GRANT USAGE ON SCHEMA %s TO %I; ', home, wanted);
        END IF;
    END LOOP;
    IF missing <> '' THEN
        RAISE EXCEPTION '% may not grant the use of schema %: let its owner run %and then run this again',
            current_user, home, missing USING ERRCODE = '42501';
    END IF;
END
$$;

REVOKE ALL ON call_attempts, call_audit, call_budgets, call_clock_gains, call_dispatchers, call_backlog, call_limit_versions, call_limits, call_flows, call_hosts, call_remotes, call_locks, call_meta,
    call_inbox, call_open, call_pauses, call_policies, call_queue, call_queues, call_usage, call_segments, call_workers, callq_migrations
    FROM callq_producer, callq_enqueuer, callq_daemon, callq_viewer;
REVOKE ALL ON SEQUENCE call_queue_id_seq, call_audit_id_seq, call_clock_gains_id_seq, call_batch_seq, call_wake_seq, callq_migrations_id_seq
    FROM callq_producer, callq_enqueuer, callq_daemon, callq_viewer;
REVOKE ALL ON FUNCTION callq_epoch, callq_purge_versions, callq_wake, enqueue_call
    FROM callq_producer, callq_enqueuer, callq_daemon, callq_viewer;

-- A producer inserts, in every way there is, and reads of calls no more than that takes: what RETURNING gives
-- back, the id, to Rails also what is computed as it is inserted, and what a duplicate is looked up by. It writes no id:
-- those that come next would be taken for others.
GRANT INSERT (queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts),
    SELECT (id, queue, unique_key, created_at, run_at) ON call_queue TO callq_producer;

-- For a producer that need not be trusted: what the function refuses, it cannot insert.
GRANT EXECUTE ON FUNCTION enqueue_call TO callq_producer, callq_enqueuer, callq_daemon;

-- serve, dispatch, work, maintain, and every command but migrate. The audit is written once. So is the ledger, but
-- that retention deletes from it, that attempts of a former call whose id is used again get other numbers, and that what an
-- attempt without an answer counts until becomes known later.
GRANT SELECT, INSERT, UPDATE, DELETE ON call_budgets, call_clock_gains, call_dispatchers, call_limits, call_flows, call_hosts, call_remotes, call_meta, call_inbox, call_open, call_pauses,
    call_policies, call_queue, call_queues, call_usage, call_segments, call_workers TO callq_daemon;
GRANT SELECT ON call_backlog TO callq_daemon;
GRANT SELECT, UPDATE (held) ON call_locks TO callq_daemon; -- nobody else may lock a row
GRANT SELECT, INSERT, DELETE, UPDATE (attempt, result, arrived_by, charged, proof) ON call_attempts TO callq_daemon;
GRANT SELECT, INSERT ON call_audit, call_limit_versions TO callq_daemon;
GRANT USAGE ON SEQUENCE call_batch_seq TO callq_daemon;
GRANT USAGE, UPDATE ON SEQUENCE call_wake_seq TO callq_daemon;

-- status, verify, calls list and get, limits list and get, queues list: everything, call_data too.
GRANT SELECT ON call_attempts, call_audit, call_budgets, call_clock_gains, call_dispatchers, call_backlog, call_limit_versions, call_limits, call_flows, call_hosts, call_remotes, call_locks, call_meta,
    call_inbox, call_open, call_pauses, call_policies, call_queue, call_queues, call_usage, call_segments, call_workers TO callq_viewer;

GRANT SELECT ON callq_migrations TO callq_daemon, callq_viewer;
GRANT EXECUTE ON FUNCTION callq_epoch TO callq_daemon, callq_viewer;
GRANT EXECUTE ON FUNCTION callq_purge_versions TO callq_daemon; -- retention
GRANT EXECUTE ON FUNCTION callq_wake TO callq_daemon;

-- Before Postgres 17 only a table's owner may VACUUM it.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 170000 THEN
        EXECUTE 'GRANT MAINTAIN ON call_attempts, call_flows, call_inbox, call_open, call_queue, call_usage, call_segments TO callq_daemon';
    END IF;
END
$$;

COMMIT;
