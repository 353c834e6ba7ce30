package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// layout is how calls lie in the table. Each is one that some way to find calls is bad at.
type layout struct {
	name         string
	parts        []part   // oldest first
	queues, keys []string // asked for
	limits       bool     // each queue has one of its own, too
}

// part is a stretch of calls.
type part struct {
	first, last int  // the numbers of its calls; call i is made after call i-1
	ended       bool // done, failed or cancelled; else they wait
	queue       string
	queues      int // over so many, queue with a number each; 0: one, of that name
	key         string
	keys        int // likewise; a number that is as large as there are calls gives each its own
}

// layouts are of n calls. A two-hundredth of them is what is few.
func layouts(n int) []layout {
	few := n / 200
	of := func(first, last int, ended bool) part {
		return part{first: first, last: last, ended: ended, queue: "q", queues: 20, key: "k", keys: few}
	}
	named := func(p part, queue string) part {
		p.queue, p.queues = queue, 0
		return p
	}
	lone := func(p part) part {
		p.keys = n
		return p
	}
	wide := func(p part) part {
		p.queues, p.keys = 100, 100
		return p
	}
	single := func(p part) part {
		p.queues, p.keys = 0, n/100
		return p
	}
	return []layout{
		{
			name:   "mostly ended",
			parts:  []part{of(1, n-few, true), of(n-few+1, n, false)},
			queues: []string{"q7"}, keys: []string{"k7"},
		},
		{
			name:   "backlog",
			parts:  []part{of(1, few, true), of(few+1, n, false)},
			queues: []string{"q7"}, keys: []string{"k7"},
		},
		{
			name:   "stuck",
			parts:  []part{named(of(1, few, false), "stuck"), of(few+1, n, true)},
			queues: []string{"q7", "stuck"}, keys: []string{"k7"},
		},
		{
			name:   "a million keys",
			parts:  []part{lone(of(1, n, false))},
			queues: []string{"q7"}, keys: []string{"k7"},
		},
		{
			name:   "10,000 keys",
			parts:  []part{single(of(1, few, true)), single(of(few+1, n, false))},
			queues: []string{"q"}, keys: []string{"k7"},
		},
		{
			name:   "100 queues",
			parts:  []part{wide(of(1, few, true)), wide(of(few+1, n, false))},
			queues: []string{"q7"}, keys: []string{"k7"}, limits: true,
		},
	}
}

// The calls of a layout came evenly over span.
const span = 100_000 * time.Second

// fill inserts its parts as callq leaves them behind, n being the size of the layout.
func (l layout) fill(ctx context.Context, pool *pgxpool.Pool, n int) error {
	for _, p := range l.parts {
		args := pgx.StrictNamedArgs{
			"first": p.first, "last": p.last, "newest": n, "apart": span / time.Duration(n), "rare": n/10*6 + 50, "ended": p.ended,
		}
		key := fmt.Sprintf("'%s' || b %% %d", p.key, p.keys)
		if p.keys == n {
			key = fmt.Sprintf("'%s' || i", p.key)
		}
		queue := "'" + p.queue + "'"
		if p.queues > 0 {
			queue = fmt.Sprintf("'%s' || a %% %d", p.queue, p.queues)
		}
		sql := strings.NewReplacer("QUEUE", queue, "KEY", key).Replace(fillSQL)
		if _, err := pool.Exec(ctx, sql, args); err != nil {
			return fmt.Errorf("insert calls: %w", err)
		}
	}
	for _, sql := range []string{fillLedgerSQL, fillUsageSQL} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("insert attempts: %w", err)
		}
	}
	return nil
}

// fillSQL: of those that ended, two of a hundred failed at once and one was cancelled while it waited. One call
// in five is of the task mail, and one in all is rare. Queues and keys have nothing to do with how a call ended.
const fillSQL = `
INSERT INTO call_queue (status, attempts, failed_count, created_at, run_at, dispatched_at, finished_at, failed_at,
    queue, task, key, error_message, call_data)
SELECT status, (status IN ('done', 'failed'))::int, (status = 'failed')::int, made, made,
    CASE WHEN status IN ('done', 'failed') THEN made + interval '1 s' END,
    CASE WHEN status <> 'new' THEN ended END, CASE status WHEN 'failed' THEN ended END,
    QUEUE, CASE WHEN i = @rare THEN 'rare' WHEN a / 20 % 5 = 0 THEN 'mail' ELSE 'http' END, KEY,
    CASE status WHEN 'failed' THEN 'POST https://api.example.com: 422 Unprocessable Entity' END,
    jsonb_build_object('url', 'https://api.example.com/v1/messages', 'method', 'POST',
        'body', jsonb_build_object('n', i, 'text', 'Your order has been sent.'))
FROM (
    SELECT i, hashint8(i) & 2147483647 AS a, hashint8(-i) & 2147483647 AS b, made, made + interval '1.2 s' AS ended,
        CASE WHEN NOT @ended::bool THEN 'new' WHEN i % 100 = 0 THEN 'cancelled' WHEN i % 100 < 3 THEN 'failed' ELSE 'done' END AS status
    FROM generate_series(@first::bigint, @last::bigint) i
    CROSS JOIN LATERAL (
        SELECT now() - interval '10 s' - (@newest - i) * @apart::interval AS made
    ) t
) calls
ORDER BY i`

const fillLedgerSQL = `
INSERT INTO call_attempts (call_id, attempt, requests, code, cost, claimed_at, started_at, arrived_by, finished_at,
    outcome, queue, task, key, worker, error, charged, result)
SELECT id, 1, CASE task WHEN 'http' THEN 1 END, CASE WHEN task = 'http' THEN CASE status WHEN 'done' THEN 200 ELSE 422 END END, 1, dispatched_at, dispatched_at + interval '10 ms', finished_at, finished_at,
    CASE status WHEN 'done' THEN 'done' ELSE 'permanent' END, queue, task, key, 'bench', error_message,
    jsonb_build_array(jsonb_build_object('limit', 'api', 'key', '', 'cost', 1, 'until', finished_at),
        jsonb_build_object('limit', 'each', 'key', key, 'cost', 1, 'until', finished_at))
        || (SELECT coalesce(jsonb_agg(jsonb_build_object('limit', l.name, 'key', '', 'cost', 1, 'until', finished_at)), '[]')
            FROM callq.call_limits l WHERE l.name = call_queue.queue),
    CASE status WHEN 'failed' THEN '{"status": 422, "headers": {}, "body": "", "truncated": false}'::jsonb END
FROM call_queue
WHERE attempts = 1 AND id > (SELECT coalesce(max(call_id), 0) FROM call_attempts)
ORDER BY id`

const fillUsageSQL = `
INSERT INTO callq.call_usage (limit_name, key, bucket, shard, used)
SELECT c."limit", c.key, date_bin(l.bucket_width, c.until, 'epoch') + l.bucket_width, pg_backend_pid(), sum(c.cost)
FROM call_attempts a
CROSS JOIN LATERAL jsonb_to_recordset(a.charged) AS c ("limit" text, key text, cost bigint, until timestamptz)
JOIN callq.call_limits l ON l.name = c."limit"
WHERE a.arrived_by > now() - 1.1 * l.window_size
GROUP BY 1, 2, 3`

// rules are two limits, which all queues of the layout use, and those of its own.
func (l layout) rules() policy.Policy {
	rules := policy.Policy{Limits: []policy.Limit{
		{Name: "api", Rate: limit.Rate{Units: 100_000, Window: time.Hour}},
		{Name: "each", Rate: limit.Rate{Units: 1000, Window: time.Hour}, PerKey: true},
	}}
	seen := map[string]bool{}
	for _, p := range l.parts {
		names := []string{p.queue}
		if p.queues > 0 {
			names = nil
		}
		for i := range p.queues {
			names = append(names, p.queue+strconv.Itoa(i))
		}
		for _, name := range names {
			if !seen[name] {
				seen[name] = true
				limits := []string{"api", "each"}
				if l.limits {
					limits = append(limits, name)
					rules.Limits = append(rules.Limits, policy.Limit{Name: name, Rate: limit.Rate{Units: 100, Window: time.Second}})
				}
				rules.Queues = append(rules.Queues, policy.Queue{
					Name: name, Limits: limits, MaxAttempts: 3, BackoffMin: 10 * time.Second,
					BackoffMax: 15 * time.Minute, Timeout: 30 * time.Second, OnLost: "retry",
				})
			}
		}
	}
	return rules
}
