package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	limits   = 100
	partners = 13 // queues that nothing holds back
)

// rules is the configuration: 100 limits and 20 queues, of which some hold their calls back for a reason each.
func rules() string {
	text := `
http: {listen: "127.0.0.1:0", actions: true}
http_task: {private_hosts: [127.0.0.1], store: all}
budgets: {search-api: {rate: 100/s, burst: 50}, geocoder: {rate: 10/s}}
queues:
  payments: {limits: [stripe]}
  sms: {limits: [twilio]}
  email: {limits: [mailgun]}
  crm: {limits: [hubspot, hubspot-account]}
  shop: {limits: [shopify]}
  render: {limits: [renderers]}
`
	const others = limits - 7
	for i := range partners {
		var names []string
		for n := i; n < others; n += partners {
			names = append(names, fmt.Sprintf("partner-api-%02d", n))
		}
		text += fmt.Sprintf("  partner-%02d: {limits: [%s]}\n", i, strings.Join(names, ", "))
	}
	text += `limits:
  stripe: {rate: 120/1m}
  twilio: {rate: 100/1m}
  mailgun: {rate: 300/1m}
  hubspot: {rate: 100/1m}
  hubspot-account: {rate: 5/1h, per: key}
  shopify: {rate: 40/1m, per: key}
  renderers: {concurrency: 50}
`
	for n := range others {
		text += fmt.Sprintf("  partner-api-%02d: {rate: %d/%s}\n", n, 100*(1+n%7), []string{"1m", "10s", "1h"}[n%3])
	}
	return text
}

// wait is calls that wait, and why they do.
type wait struct {
	queue, task, path string
	percent           int    // of all calls
	least             int    // calls; more of the bulk than may be changed unasked, for example
	keys              int    // spread over so many; 0: none
	status            string // new or error
	later             string // when they are due: an interval
}

func waits() []wait {
	return []wait{
		{"payments", "http", "/v1/charges", 2, 2500, 10_000, "new", "0"}, // its limit is full
		{"sms", "http", "/busy", 2, 500, 10_000, "new", "0"},             // its API refuses
		{"email", "http", "/v3/messages", 2, 2500, 10_000, "new", "0"},   // its limit is paused
		{"crm", "http", "/crm/v3", 2, 1500, 10_000, "new", "0"},          // as payments, and a limit per key
		{"shop", "http", "/admin/api", 1, 1500, 3, "new", "0"},           // three keys are full
		{"render", "render", "", 1, 300, 0, "new", "0"},                  // no worker runs the task
		{"partner-01", "http", "/v1", 4, 400, 10_000, "new", "1 day"},
		{"partner-02", "http", "/v1", 0, 400, 10_000, "error", "3 hours"},
	}
}

func (s *suite) fill(ctx context.Context) error {
	if _, err := s.holds(ctx, 30*time.Second, `SELECT count(*) >= $1 FROM callq.call_limits`, limits); err != nil {
		return err
	}
	// Before its calls are there, so that none of them goes.
	if err := s.post(ctx, "limits/pause", map[string]any{"limit": "mailgun", "reason": "their invoice is open"}); err != nil {
		return err
	}
	waiting := 0
	for _, w := range waits() {
		waiting += w.count(s.calls)
	}
	for _, sql := range []string{endedSQL, attemptsSQL, limitHistorySQL, queueHistorySQL, workersSQL, auditSQL} {
		if _, err := s.pool.Exec(ctx, sql, pgx.NamedArgs{"calls": s.calls - waiting, "api": s.api.URL}); err != nil {
			return fmt.Errorf("%w\n%s", err, sql)
		}
	}
	if _, err := s.pool.Exec(ctx, recentSQL); err != nil {
		return fmt.Errorf("%w\n%s", err, recentSQL)
	}
	for _, w := range waits() {
		if err := s.insert(ctx, w, w.count(s.calls)); err != nil {
			return err
		}
	}
	if _, err := s.pool.Exec(ctx, "VACUUM ANALYZE"); err != nil {
		return err
	}
	for what, sql := range map[string]string{
		"stripe is full":        `SELECT count(*) >= 110 FROM call_attempts WHERE queue = 'payments' AND started_at > now() - interval '1 minute'`,
		"twilio is refused":     `SELECT count(*) = 1 FROM callq.call_pauses WHERE name = 'twilio' AND spell IS NOT NULL`,
		"the inbox was drained": `SELECT count(*) = 0 FROM callq.call_inbox WHERE at < now()`,
	} {
		held, err := s.holds(ctx, 2*time.Minute, sql)
		if err != nil {
			return err
		}
		if !held {
			return fmt.Errorf("it never came that %s", what)
		}
	}
	return nil
}

func (w wait) count(calls int) int { return max(w.least, calls/100*w.percent) }

// insert inserts calls that wait.
func (s *suite) insert(ctx context.Context, w wait, calls int) error {
	_, err := s.pool.Exec(ctx, waitingSQL, pgx.StrictNamedArgs{
		"calls": calls, "queue": w.queue, "task": w.task, "url": s.api.URL + w.path, "keys": w.keys, "status": w.status, "later": w.later,
	})
	if err != nil {
		return fmt.Errorf("insert calls of %s: %w", w.queue, err)
	}
	return nil
}

// endedSQL: of those that ended, about 20 of a thousand are dead letters, of twelve shapes, and 20 were cancelled.
const endedSQL = `
INSERT INTO call_queue (status, attempts, failed_count, created_at, run_at, dispatched_at, finished_at, failed_at,
    queue, task, key, error_message, call_data)
SELECT status, CASE status WHEN 'done' THEN 1 WHEN 'failed' THEN 3 ELSE 0 END, CASE status WHEN 'failed' THEN 3 ELSE 0 END, made, made,
    CASE WHEN status <> 'cancelled' THEN made + interval '1 s' END, made + interval '1.2 s', CASE status WHEN 'failed' THEN made + interval '1.2 s' END,
    queue, CASE WHEN a / 20 % 5 = 0 THEN 'import' WHEN a / 20 % 5 = 1 THEN 'export' ELSE 'http' END, 'acct_' || b % 10000,
    CASE status WHEN 'failed' THEN (ARRAY[
        'POST https://api.example.com/v1/messages/' || i || ': 422 Unprocessable Entity',
        'POST https://api.example.com/v1/charges: 402 Payment Required',
        'GET https://crm.example.com/contacts/' || b || ': 404 Not Found',
        'dial tcp 10.0.' || b % 256 || '.17:443: connection refused',
        'context deadline exceeded after ' || b % 30 || ' s',
        'PUT https://shop.example.com/orders/' || i || ': 409 Conflict',
        'decode answer: invalid character "<" looking for beginning of value',
        'x509: certificate has expired or is not yet valid',
        'no such recipient: "user' || b || '@example.com"',
        'POST https://api.example.com/v1/messages: 500 Internal Server Error',
        'account ' || b || ' is suspended',
        'unexpected EOF'])[1 + b % 12] END,
    jsonb_build_object('url', @api || '/v1/messages', 'method', 'POST', 'json', jsonb_build_object('n', i, 'text', 'Your order has been sent.'))
FROM (
    SELECT i, a, b, now() - interval '10 minutes' - (@calls - i) * interval '20 hours' / @calls AS made,
        (SELECT array_agg(name ORDER BY name) FROM callq.call_queues)[1 + a % (SELECT count(*) FROM callq.call_queues)] AS queue,
        CASE WHEN i % 1000 < 22 THEN 'failed' WHEN i % 1000 < 42 THEN 'cancelled' ELSE 'done' END AS status
    FROM generate_series(1, @calls::bigint) i
    CROSS JOIN LATERAL (SELECT hashint8(i) & 2147483647 AS a, hashint8(-i) & 2147483647 AS b) h
) calls
ORDER BY i`

// attemptsSQL gives each dead letter three attempts, and each other one.
const attemptsSQL = `
INSERT INTO call_attempts (call_id, attempt, requests, code, took_ms, cost, claimed_at, started_at, arrived_by, finished_at,
    outcome, queue, task, key, worker, error, charged, result)
SELECT c.id, n, CASE c.task WHEN 'http' THEN 1 END, CASE WHEN c.task = 'http' THEN CASE c.status WHEN 'done' THEN 200 ELSE 422 END END,
    50 + c.id % 400, 1, t.began - interval '200 ms', t.began, t.began + interval '100 ms', t.began + interval '180 ms',
    CASE WHEN c.status = 'done' THEN 'done' WHEN n < c.attempts THEN 'error' ELSE 'permanent' END, c.queue, c.task, c.key, 'host-1/4711', c.error_message,
    CASE WHEN q.limits = '{}' THEN '[]' ELSE jsonb_build_array(jsonb_build_object('limit', q.limits[1], 'key', '', 'cost', 1, 'until', t.began + interval '100 ms')) END,
    CASE c.status WHEN 'failed' THEN '{"status": 422, "headers": {}, "body": "{\"error\": \"invalid\"}", "truncated": false}'::jsonb END
FROM call_queue c
JOIN callq.call_queues q ON q.name = c.queue
CROSS JOIN LATERAL generate_series(1, c.attempts) n
CROSS JOIN LATERAL (SELECT c.dispatched_at - (c.attempts - n) * interval '20 s' AS began) t
WHERE c.finished_at IS NOT NULL
ORDER BY c.id`

// recentSQL has the limit stripe be almost used up for some minutes, until a window ago: nothing of it counts any more.
const recentSQL = `
WITH made AS (
    INSERT INTO call_queue (status, attempts, created_at, run_at, dispatched_at, finished_at, queue, key, call_data)
    SELECT 'done', 1, began, began, began, began + interval '80 ms', 'payments', 'acct_' || i, '{}'
    FROM generate_series(1, 420) i
    CROSS JOIN LATERAL (SELECT now() - interval '65 s' - i * interval '520 ms' - random() * interval '400 ms' AS began) t
    RETURNING id, dispatched_at AS began, key
)
INSERT INTO call_attempts (call_id, attempt, requests, code, took_ms, cost, claimed_at, started_at, arrived_by, finished_at,
    outcome, queue, task, key, worker, charged)
SELECT id, 1, 1, 200, 80, 1, began, began, began + interval '80 ms', began + interval '80 ms', 'done', 'payments', 'http', key, 'host-1/4711',
    jsonb_build_array(jsonb_build_object('limit', 'stripe', 'key', '', 'cost', 1, 'until', began + interval '80 ms'))
FROM made`

const waitingSQL = `
INSERT INTO call_queue (status, attempts, failed_count, created_at, run_at, queue, task, key, call_data)
SELECT @status::text, (@status = 'error')::int, (@status = 'error')::int, now() - interval '10 minutes' * random(),
    now() - interval '5 minutes' * random() + @later::text::interval,
    @queue, @task, CASE WHEN @keys::int > 0 THEN 'acct_' || i % @keys::int ELSE '' END,
    jsonb_build_object('url', @url::text, 'method', 'POST', 'json', jsonb_build_object('n', i))
FROM generate_series(1, @calls::int) i`

const limitHistorySQL = `
INSERT INTO callq.call_limit_history (limit_name, minute, used, capacity, waiting, refused, closed)
SELECT l.name, m, least(u.allowed, u.allowed * (0.5 + 0.4 * sin(extract(epoch FROM m) / 900 + hashtext(l.name) % 10)))::int, u.allowed,
    hashtext(l.name) & 1023, CASE WHEN hashtext(l.name || m) % 20 = 0 THEN 1 ELSE 0 END, NULL
FROM callq.call_limits l
CROSS JOIN generate_series(date_trunc('minute', now()) - interval '60 minutes', date_trunc('minute', now()) - interval '1 minute', '1 minute') m
CROSS JOIN LATERAL (
    SELECT l.rate * CASE WHEN l.window_size > '0' THEN 60 / extract(epoch FROM l.window_size) ELSE 1 END AS allowed
) u
ON CONFLICT DO NOTHING`

const queueHistorySQL = `
INSERT INTO callq.call_queue_history (queue, minute, due, started, done, errors, wait_p50, wait_p95, run_p50, run_p95)
SELECT q.name, m, CASE WHEN q.name ~ '^(default|partner)' THEN hashtext(q.name || m) & 15 ELSE (hashtext(q.name) & 1023) + extract(epoch FROM m)::bigint / 60 % 60 END, 40 + hashtext(q.name || m) % 20, 38, 2, 1500, 9500, 80, 400
FROM callq.call_queues q
CROSS JOIN generate_series(date_trunc('minute', now()) - interval '60 minutes', date_trunc('minute', now()) - interval '1 minute', '1 minute') m
ON CONFLICT DO NOTHING`

// workersSQL: two that are alive, of tasks of which no call is due, and one that is dead.
const workersSQL = `
INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
VALUES ('imports-1', 'imports', '{import}', '{eu}', 20, now() - interval '2 days', now() + interval '2 hours'),
    ('exports-1', 'exports', '{export}', '{}', 8, now() - interval '3 hours', now() + interval '2 hours'),
    ('exports-0', 'exports', '{export}', '{}', 8, now() - interval '3 days', now() - interval '3 minutes')`

const auditSQL = `
INSERT INTO callq.call_audit (at, by, what, name, change, reason)
SELECT now() - i * interval '11 minutes', (ARRAY['ada', 'grace', 'CI'])[1 + i % 3], 'limit', 'partner-api-' || lpad((i % 90)::text, 2, '0'),
    'rate: 100/1m → ' || 100 + i || '/1m', 'they raised our quota'
FROM generate_series(1, 250) i`
