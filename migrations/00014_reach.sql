-- How often a call may fail is bounded where it is written, as for queues, and so are the labels of a worker.

-- +goose Up

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION callq_call_bounded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.max_attempts > 1000 THEN
        RAISE EXCEPTION 'max_attempts is %, more than 1000', NEW.max_attempts
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Nothing was written. NULL is what the queue says.';
    END IF;
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

CREATE OR REPLACE TRIGGER call_queue_bounded AFTER INSERT ON call_queue
    FOR EACH ROW
    WHEN (octet_length(NEW.queue) > 255 OR octet_length(NEW.task) > 255 OR octet_length(NEW.key) > 255
        OR octet_length(NEW.unique_key) > 255 OR NEW.max_attempts > 1000)
    EXECUTE FUNCTION callq_call_bounded();

CREATE TRIGGER call_queue_attempts_bounded_again AFTER UPDATE OF max_attempts ON call_queue
    FOR EACH ROW
    WHEN (NEW.max_attempts > 1000 AND NEW.max_attempts IS DISTINCT FROM OLD.max_attempts)
    EXECUTE FUNCTION callq_call_bounded();

-- NOT VALID: rows of workers that have ended stay for a while.
ALTER TABLE call_workers ADD CONSTRAINT call_workers_labels_check
    CHECK (cardinality(labels) <= 64 AND octet_length(array_to_string(labels, '')) <= 64 * 255) NOT VALID;

-- +goose Down
ALTER TABLE call_workers DROP CONSTRAINT call_workers_labels_check;
DROP TRIGGER call_queue_attempts_bounded_again ON call_queue;
CREATE OR REPLACE TRIGGER call_queue_bounded AFTER INSERT ON call_queue
    FOR EACH ROW
    WHEN (octet_length(NEW.queue) > 255 OR octet_length(NEW.task) > 255 OR octet_length(NEW.key) > 255 OR octet_length(NEW.unique_key) > 255)
    EXECUTE FUNCTION callq_call_bounded();
