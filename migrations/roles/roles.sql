-- Who may do what: four roles without a login, to be granted to those that log in:
--
--     CREATE ROLE shop LOGIN PASSWORD '…' IN ROLE callq_producer;
--
-- Run it as the owner of callq's tables, after each `callq migrate up`; any number of times. It makes the
-- roles that are missing, takes from them what they hold of callq's, and gives them what they need.

BEGIN;

DO $$
DECLARE
    owner   name         := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass('public.call_queue'));
    homes   regnamespace[] := ARRAY(SELECT relnamespace FROM pg_class WHERE oid IN (to_regclass('public.call_queue'), to_regclass('callq.call_open'))
                                    ORDER BY relname DESC); -- the users' first
    home    regnamespace;
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
    -- Producers need nothing of callq's own schema: what an INSERT does there, it does as the owner.
    FOR home, wanted IN SELECT h, r FROM unnest(homes) AS h, unnest(roles) AS r WHERE h = homes[1] OR r !~ '_(producer|enqueuer)$' LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', home, wanted); -- no more than a warning, where it may not
        IF NOT has_schema_privilege(wanted, home::oid, 'USAGE') THEN
            missing := missing || format('GRANT USAGE ON SCHEMA %s TO %I; ', home, wanted);
        END IF;
    END LOOP;
    IF missing <> '' THEN
        RAISE EXCEPTION '% may not grant the use of a schema: let its owner run %and then run this again',
            current_user, missing USING ERRCODE = '42501';
    END IF;
END
$$;

REVOKE ALL ON public.call_queue, public.call_attempts FROM callq_producer, callq_enqueuer, callq_daemon, callq_viewer;
REVOKE ALL ON SEQUENCE public.call_queue_id_seq FROM callq_producer, callq_enqueuer, callq_daemon, callq_viewer;
REVOKE ALL ON FUNCTION public.enqueue_call, public.callq_backlog, public.callq_queue_of FROM callq_producer, callq_enqueuer, callq_daemon, callq_viewer;
REVOKE ALL ON ALL TABLES IN SCHEMA callq FROM callq_producer, callq_enqueuer, callq_daemon, callq_viewer;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA callq FROM callq_producer, callq_enqueuer, callq_daemon, callq_viewer;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA callq FROM callq_producer, callq_enqueuer, callq_daemon, callq_viewer;

-- A producer inserts, in every way there is, ORMs' too: they name the id, as DEFAULT, and read it back from the sequence, or by
-- RETURNING with what else of the row they know. So a producer reads all of calls but what may hold secrets: call_data, and an
-- API's answer in error_message. An id of its own making is refused.
GRANT INSERT (id, queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts),
    SELECT (id, status, queue, task, key, cost, priority, run_at, expires_at, unique_key, max_attempts, attempts, failed_count, created_at,
        dispatched_at, finished_at) ON public.call_queue TO callq_producer;
GRANT SELECT ON SEQUENCE public.call_queue_id_seq TO callq_producer;

-- For a producer that need not be trusted: what the function refuses, it cannot insert.
GRANT EXECUTE ON FUNCTION public.enqueue_call TO callq_producer, callq_enqueuer, callq_daemon;

GRANT EXECUTE ON FUNCTION public.callq_backlog TO callq_producer, callq_enqueuer, callq_daemon, callq_viewer;
GRANT EXECUTE ON FUNCTION public.callq_queue_of TO callq_producer, callq_daemon; -- where another call has the unique key

-- serve, dispatch, work, maintain, and every command but migrate. The audit is written once. So is the ledger, but
-- that retention deletes from it, that attempts of a former call whose id is used again get other numbers, and that what an
-- attempt without an answer counts until becomes known later.
GRANT SELECT, INSERT, UPDATE, DELETE ON public.call_queue TO callq_daemon;
GRANT INSERT, UPDATE, DELETE ON callq.call_limit_history, callq.call_queue_history, callq.call_budgets, callq.call_caps, callq.call_waiting, callq.call_routes, callq.call_routed, callq.call_clock_gains, callq.call_dispatchers, callq.call_epochs, callq.call_limits, callq.call_flows, callq.call_hosts, callq.call_remotes, callq.call_meta, callq.call_inbox, callq.call_open, callq.call_pauses,
    callq.call_policies, callq.call_queues, callq.call_usage, callq.call_segments, callq.call_workers TO callq_daemon;
GRANT UPDATE (held) ON callq.call_locks TO callq_daemon; -- no other role may lock a row
GRANT UPDATE (id) ON callq.call_effective TO callq_daemon; -- claims lock calls through it
GRANT SELECT, INSERT, DELETE, UPDATE (attempt, result, arrived_by, charged, proof) ON public.call_attempts TO callq_daemon;
GRANT INSERT ON callq.call_audit, callq.call_limit_versions TO callq_daemon;
GRANT USAGE ON SEQUENCE callq.call_batch_seq, callq.call_ruled_seq TO callq_daemon;
GRANT USAGE, UPDATE ON SEQUENCE callq.call_wake_seq TO callq_daemon;

-- status, verify, calls list and get, limits list and get, queues list: everything, call_data too.
GRANT SELECT ON public.call_queue, public.call_attempts TO callq_viewer;
GRANT SELECT ON ALL TABLES IN SCHEMA callq TO callq_daemon, callq_viewer;

GRANT EXECUTE ON FUNCTION callq.epoch TO callq_daemon, callq_viewer;
GRANT EXECUTE ON FUNCTION callq.purge_versions TO callq_daemon; -- retention
GRANT EXECUTE ON FUNCTION callq.wake, callq.fold_waiting, callq.note_waiting, callq.keep_cap, callq.keep_caps, callq.count_waiting, callq.matching,
    callq.route, callq.routes_of, callq.routed_by, callq.apply_routes TO callq_daemon;

-- Before Postgres 17 only a table's owner may VACUUM it.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 170000 THEN
        EXECUTE 'GRANT MAINTAIN ON public.call_attempts, callq.call_flows, callq.call_inbox, callq.call_open, public.call_queue, callq.call_usage, callq.call_segments, callq.call_waiting, callq.call_routed TO callq_daemon';
    END IF;
END
$$;

COMMIT;
