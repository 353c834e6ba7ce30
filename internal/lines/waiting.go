package lines

// WaitingSQL completes a WITH by waiting: the calls that wait in these queues and for these tasks (a condition
// on t.queue and t.task), in all and due, by queue and task, which may come in several rows. Lines and news say
// how many, but may speak of calls that have ended. So where a queue has few of a task, each is looked at, by its
// id: Postgres cannot tell how few, and would join them with all calls. Those of which there are fewest come
// first, until they are 5,000 together. On the way come asked, what lines and news say, and if that is few, and
// looked, what the looks at few found, by key too.
//
// What lines say is kept as totals. What news say is summed up in one pass, which several processes of Postgres
// share: so said has neither keys nor a clock that is read for each row.
func WaitingSQL(these string) string {
	return `
said AS (
    SELECT queue, task, calls, calls AS due FROM call_line_totals
    UNION ALL
    SELECT queue, task, sum(calls), sum(calls) FILTER (WHERE at <= (SELECT clock_timestamp())) FROM call_news GROUP BY queue, task
), asked AS MATERIALIZED (
    SELECT queue, task, calls, due, sum(calls) OVER (ORDER BY calls, queue, task) <= 5000 AS few
    FROM (SELECT queue, task, sum(calls) AS calls, coalesce(sum(due), 0) AS due FROM said GROUP BY queue, task) t
    WHERE calls > 0 AND ` + these + `
), looked AS (
    SELECT a.queue, c.key, c.task, count(DISTINCT q.id) AS calls, count(DISTINCT q.id) FILTER (WHERE q.due) AS due
    FROM (SELECT DISTINCT queue FROM asked WHERE few) a
    CROSS JOIN LATERAL (
        SELECT l.key, l.task, w.ids[CASE w.seq WHEN l.head THEN l.taken ELSE 0 END + 1:] AS ids
        FROM (
            SELECT key, priority, task, head, taken FROM call_lines
            WHERE queue = a.queue AND calls > 0 AND (queue, task) IN (SELECT queue, task FROM asked WHERE few)
            OFFSET 0
        ) l
        CROSS JOIN LATERAL (
            SELECT seq, ids FROM call_waiting
            WHERE queue = a.queue AND key = l.key AND priority = l.priority AND task = l.task AND seq >= l.head
            OFFSET 0
        ) w
        UNION ALL
        SELECT key, task, ids FROM call_news
        WHERE queue = a.queue AND calls > 0 AND keys IS NULL AND (queue, task) IN (SELECT queue, task FROM asked WHERE few)
        UNION ALL
        SELECT i.key, n.task, ARRAY[i.id]
        FROM (
            SELECT task, ids, keys FROM call_news
            WHERE queue = a.queue AND keys IS NOT NULL AND (queue, task) IN (SELECT queue, task FROM asked WHERE few)
            OFFSET 0
        ) n
        CROSS JOIN LATERAL unnest(n.ids, n.keys) AS i (id, key)
    ) c
    CROSS JOIN LATERAL (
        SELECT r.id, coalesce(r.run_at, r.created_at) <= clock_timestamp() AS due
        FROM unnest(c.ids) AS i (waits)
        CROSS JOIN LATERAL (SELECT * FROM call_queue WHERE id = i.waits OFFSET 0) r
        WHERE r.status IN ('new', 'error')
          AND (callq_line_name(r.queue, 'default'), callq_line_name(r.key, ''), callq_line_name(r.task, 'http')) = (a.queue, c.key, c.task)
    ) q
    GROUP BY a.queue, c.key, c.task
), waiting AS (
    SELECT queue, task, calls, due FROM asked WHERE NOT few
    UNION ALL
    SELECT queue, task, calls, due FROM looked
)`
}

// WithoutWorker are those that no live worker takes: one that handles the task and carries the queue's label.
const WithoutWorker = `NOT EXISTS (
        SELECT FROM call_workers w LEFT JOIN call_queues q ON q.name = t.queue
        WHERE w.beat_at > clock_timestamp() - interval '6 seconds' AND t.task = ANY(w.tasks)
          AND (coalesce(q.on_label, '') = '' OR q.on_label = ANY(w.labels)))`
