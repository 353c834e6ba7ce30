package backlog

// WaitingSQL completes a WITH by waiting: the calls that wait in these queues and for these tasks (a condition
// on t.queue and t.task), in all and due, by queue and task, which may come in several rows. Flows and inbox say
// how many, but may speak of calls that have ended. So where a queue has few of a task, each is looked at, by its
// id: Postgres cannot tell how few, and would join them with all calls. Those of which there are fewest come
// first, until they are 3,000 together. On the way come asked, what flows and inbox say, and if that is few, and
// looked, what the looks at few found, by key too.
//
// Of queues that are not in force, and of tasks that no worker takes, the 100 pairs are named of which most wait: a
// producer may write any number of them. What is left comes without a name: task is NULL, and queue where it is
// not in force; pairs says how many a row stands for.
//
// What flows and inbox say is summed up in one pass each, which several processes of Postgres share: so said has
// neither keys nor a clock that is read for each row.
func WaitingSQL(these string) string {
	return `
said AS (
    SELECT queue, task, sum(calls) AS calls, sum(calls) AS due FROM call_flows WHERE calls > 0 GROUP BY queue, task
    UNION ALL
    SELECT queue, task, sum(calls), sum(calls) FILTER (WHERE at <= (SELECT clock_timestamp()))
    FROM call_inbox
    WHERE calls > 0
    GROUP BY queue, task
), counted AS MATERIALIZED (
    SELECT t.*, q.name IS NOT NULL AS in_force,
        q.name IS NOT NULL AND task = ANY (ARRAY(SELECT unnest(tasks) FROM call_workers)) AS served
    FROM (SELECT queue, task, sum(calls) AS calls, coalesce(sum(due), 0) AS due FROM said GROUP BY queue, task) t
    LEFT JOIN call_queues q ON q.name = t.queue
    WHERE calls > 0 AND ` + these + `
), named AS MATERIALIZED (
    SELECT queue, task, calls, due, 1 AS pairs FROM counted WHERE served
    UNION ALL
    (SELECT queue, task, calls, due, 1 FROM counted WHERE NOT served ORDER BY calls DESC, queue, task LIMIT 100)
), asked AS MATERIALIZED (
    SELECT *, sum(calls) OVER (ORDER BY calls, queue, task) <= 3000 AS few FROM named
    UNION ALL
    SELECT CASE WHEN in_force THEN queue END, NULL, sum(calls), sum(due), count(*), false
    FROM counted
    WHERE NOT served AND (queue, task) NOT IN (SELECT queue, task FROM named)
    GROUP BY 1
), looked AS (
    SELECT queue, key, task, count(*) AS calls, count(*) FILTER (WHERE at <= clock_timestamp()) AS due
    FROM (
        SELECT callq_flow_name(queue, 'default') AS queue, callq_flow_name(key, '') AS key, callq_flow_name(task, 'http') AS task,
            coalesce(run_at, created_at) AS at
        FROM call_queue
        WHERE status IN ('new', 'error') AND id = ANY (ARRAY(
            SELECT l.id
            FROM (SELECT queue, array_agg(task) AS tasks FROM asked WHERE few GROUP BY queue) a
            CROSS JOIN LATERAL (SELECT id FROM call_backlog WHERE queue = a.queue AND task = ANY(a.tasks) OFFSET 0) l))
    ) q
    GROUP BY queue, key, task
    HAVING (queue, task) IN (SELECT queue, task FROM asked WHERE few)
), waiting AS (
    SELECT queue, task, calls, due, pairs FROM asked WHERE NOT few
    UNION ALL
    SELECT queue, task, calls, due, 1 FROM looked
)`
}

// WithoutWorker are those that no live worker takes: one that handles the task and carries the queue's label.
const WithoutWorker = `NOT EXISTS (
        SELECT FROM call_workers w LEFT JOIN call_queues q ON q.name = t.queue
        WHERE callq_alive(w.heartbeat_at) AND t.task = ANY(w.tasks)
          AND (coalesce(q.label, '') = '' OR q.label = ANY(w.labels)))`
