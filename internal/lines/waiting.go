package lines

// WaitingSQL completes a WITH by waiting: calls that wait, in all and due, by queue, key and task, which may
// come in several rows. Lines and news say how many, but may speak of calls that have ended. So where a queue
// has few of a task, each is looked at, by its id: Postgres cannot tell how few, and would join them with all
// calls. The queues and tasks that have fewest come first, until they are 10,000 together.
const WaitingSQL = `
said AS (
    SELECT queue, key, task, calls, true AS due FROM call_lines WHERE calls > 0
    UNION ALL
    SELECT queue, key, task, calls, at <= clock_timestamp() FROM call_news WHERE calls > 0
), few AS MATERIALIZED (
    SELECT queue, task
    FROM (
        SELECT queue, task, sum(sum(calls)) OVER (ORDER BY sum(calls), queue, task) AS together
        FROM said GROUP BY queue, task
    ) s
    WHERE together <= 10000
), waiting AS (
    SELECT queue, key, task, calls, CASE WHEN due THEN calls ELSE 0 END AS due
    FROM said
    WHERE (queue, task) NOT IN (SELECT queue, task FROM few)
    UNION ALL
    SELECT i.queue, i.key, i.task, count(DISTINCT q.id), count(DISTINCT q.id) FILTER (WHERE q.due)
    FROM few f
    JOIN call_in_line i ON i.queue = f.queue AND i.task = f.task
    CROSS JOIN LATERAL (
        SELECT id, coalesce(run_at, created_at) <= clock_timestamp() AS due
        FROM call_queue c
        WHERE c.id = i.id AND c.status IN ('new', 'error')
          AND (callq_line_name(c.queue, 'default'), callq_line_name(c.key, ''), callq_line_name(c.task, 'http')) = (i.queue, i.key, i.task)
        OFFSET 0
    ) q
    GROUP BY 1, 2, 3
)`
