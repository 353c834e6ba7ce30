package pgtest

// FillSQL fills the tables with calls in all states, most of them waiting, and a larger ledger and usage.
const FillSQL = `
INSERT INTO call_queues SELECT 'q' || i, '{api}', '', 3, '1 s', '1 min', '30 s', 'retry' FROM generate_series(1, 5) i;
INSERT INTO call_limits (name, version, rate, window_size, per_key, count_cost, slack, send_within, queues, applied_at, applied_by, epoch)
SELECT 'l' || i, 1, 100, '1 min', false, false, '1 s', '1 s', '{}', now(), 'test', callq_epoch() FROM generate_series(1, 20) i;
INSERT INTO call_queue (queue, key, status, expires_at)
SELECT 'q' || i % 5, CASE i % 3 WHEN 0 THEN '' ELSE 'k' || i % 1000 END, CASE i % 10 WHEN 0 THEN 'done' WHEN 1 THEN 'dispatched' ELSE 'new' END, CASE i % 100 WHEN 0 THEN now() + interval '1 h' END
FROM generate_series(1, 20000) i;
INSERT INTO call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now(), callq_epoch(), 'http', queue, 'http', '', '{l1}', '{""}', '{1}' FROM call_queue WHERE status = 'dispatched';
INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, arrived_by, outcome, queue, task, key, charged)
SELECT i, 1, 1, now(), now(), now(), 'done', 'q1', 'http', '', '[]' FROM generate_series(1, 20000) i;
INSERT INTO call_usage SELECT 'l' || i % 20, '', now() + i * interval '1 ms', i % 4, 1 FROM generate_series(1, 20000) i;
INSERT INTO call_workers SELECT 'w' || i, 'http', '{http}', '{}', 100, now(), now() FROM generate_series(1, 10) i`
