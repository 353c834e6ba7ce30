-- Names that no index takes in are refused where they are written.

-- +goose Up

-- With a queue, task or key beyond 255 bytes no call can be made, and an index takes in no more than 2,704 bytes: a row
-- that had more could not even fail. Rows that are there stay: claims and sweeps fail them. So it is a
-- trigger and not a CHECK, which would refuse every change of theirs. Its WHEN costs a call a fraction of a microsecond.
-- +goose StatementBegin
CREATE FUNCTION callq_call_bounded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is longer than 255 bytes', CASE
            WHEN octet_length(NEW.queue) > 255 THEN 'queue'
            WHEN octet_length(NEW.task) > 255 THEN 'task'
            WHEN octet_length(NEW.key) > 255 THEN 'key'
            ELSE 'unique_key'
        END
        USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Nothing was written. Shorten it; of a text that has to stay unique, take a digest, such as md5(...).';
END $$;
-- +goose StatementEnd

CREATE TRIGGER call_queue_bounded AFTER INSERT ON call_queue
    FOR EACH ROW
    WHEN (octet_length(NEW.queue) > 255 OR octet_length(NEW.task) > 255 OR octet_length(NEW.key) > 255 OR octet_length(NEW.unique_key) > 255)
    EXECUTE FUNCTION callq_call_bounded();

CREATE TRIGGER call_queue_bounded_again AFTER UPDATE OF queue, task, key, unique_key ON call_queue
    FOR EACH ROW
    WHEN (octet_length(NEW.queue) > 255 AND NEW.queue IS DISTINCT FROM OLD.queue
        OR octet_length(NEW.task) > 255 AND NEW.task IS DISTINCT FROM OLD.task
        OR octet_length(NEW.key) > 255 AND NEW.key IS DISTINCT FROM OLD.key
        OR octet_length(NEW.unique_key) > 255 AND NEW.unique_key IS DISTINCT FROM OLD.unique_key)
    EXECUTE FUNCTION callq_call_bounded();

-- +goose Down
DROP TRIGGER call_queue_bounded ON call_queue;
DROP TRIGGER call_queue_bounded_again ON call_queue;
DROP FUNCTION callq_call_bounded();
