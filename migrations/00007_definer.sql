-- Functions that run as their owner are for nobody else to attach or to call.

-- +goose Up

-- Whoever may execute a trigger's function may make a trigger of it, on a temporary table of one's own whose
-- columns have casts of one's own: those would run as the owner. So nobody else may execute these, for which firing
-- them asks no leave; and where somebody made such a trigger before, they refuse.
-- +goose StatementBegin
DO $migration$
DECLARE
    f regprocedure;
BEGIN
    FOREACH f IN ARRAY ARRAY['callq_calls_inserted()', 'callq_call_waits_again()']::regprocedure[] LOOP
        EXECUTE regexp_replace(pg_get_functiondef(f), E'\nBEGIN\n', $check$
BEGIN
    IF TG_TABLE_NAME <> 'call_queue' OR TG_TABLE_SCHEMA <> current_schema() THEN
        RAISE EXCEPTION 'this function is call_queue''s alone, not %''s', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
$check$);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END $migration$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $migration$
DECLARE
    f regprocedure;
BEGIN
    FOREACH f IN ARRAY ARRAY['callq_calls_inserted()', 'callq_call_waits_again()']::regprocedure[] LOOP
        EXECUTE regexp_replace(pg_get_functiondef(f), E'    IF TG_TABLE_NAME.*?END IF;\n', '');
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', f);
    END LOOP;
END $migration$;
-- +goose StatementEnd
