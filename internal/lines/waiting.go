package lines

// WaitingSQL completes a WITH by waiting: the calls that wait in these queues and for these tasks (a condition
// on t.queue and t.task), in all and due, by queue, key and task, which may come in several rows. Lines and
// news say how many, but may speak of calls that have ended. So where a queue has few of a task, each is looked
// at, by its id: Postgres cannot tell how few, and would join them with all calls. Those of which there are
// fewest come first, until they are 10,000 together.
func WaitingSQL(these string) string {
	return `
said AS NOT MATERIALIZED (
    SELECT queue, key, task, calls, true AS due FROM call_lines WHERE calls > 0
    UNION ALL
    SELECT queue, key, task, calls, at <= clock_timestamp() FROM call_news WHERE calls > 0
), asked AS MATERIALIZED (
    SELECT queue, task, sum(calls) OVER (ORDER BY calls, queue, task) <= 10000 AS few
    FROM (SELECT queue, task, sum(calls) AS calls FROM said GROUP BY queue, task) t
    WHERE ` + these + `
), waiting AS (
    SELECT queue, key, task, calls, CASE WHEN due THEN calls ELSE 0 END AS due
    FROM said
    WHERE (queue, task) IN (SELECT queue, task FROM asked WHERE NOT few)
    UNION ALL
    SELECT a.queue, c.key, a.task, count(DISTINCT q.id), count(DISTINCT q.id) FILTER (WHERE q.due)
    FROM asked a
    CROSS JOIN LATERAL (
        SELECT l.key, w.ids[CASE w.seq WHEN l.head THEN l.taken ELSE 0 END + 1:] AS ids
        FROM (SELECT key, priority, head, taken FROM call_lines WHERE queue = a.queue AND task = a.task AND calls > 0 OFFSET 0) l
        CROSS JOIN LATERAL (
            SELECT seq, ids FROM call_waiting
            WHERE queue = a.queue AND key = l.key AND priority = l.priority AND task = a.task AND seq >= l.head
            OFFSET 0
        ) w
        UNION ALL
        SELECT key, ids FROM call_news WHERE queue = a.queue AND task = a.task AND calls > 0
    ) c
    CROSS JOIN LATERAL (
        SELECT r.id, coalesce(r.run_at, r.created_at) <= clock_timestamp() AS due
        FROM unnest(c.ids) AS i (waits)
        CROSS JOIN LATERAL (SELECT * FROM call_queue WHERE id = i.waits OFFSET 0) r
        WHERE r.status IN ('new', 'error')
          AND (callq_line_name(r.queue, 'default'), callq_line_name(r.key, ''), callq_line_name(r.task, 'http')) = (a.queue, c.key, a.task)
    ) q
    WHERE a.few
    GROUP BY 1, 2, 3
)`
}

// WithoutWorker are those that no live worker takes: one that handles the task and carries the queue's label.
const WithoutWorker = `NOT EXISTS (
        SELECT FROM call_workers w LEFT JOIN call_queues q ON q.name = t.queue
        WHERE w.beat_at > clock_timestamp() - interval '6 seconds' AND t.task = ANY(w.tasks)
          AND (coalesce(q.on_label, '') = '' OR q.on_label = ANY(w.labels)))`
