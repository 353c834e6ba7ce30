package dispatcher

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/lines"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Publish makes rules the policy in force: it brings the limits, queues and budgets in Postgres to them, and
// says, a line each, what changed; by is who, for the audit. Every process reads what is in force from
// Postgres, under the locks that Publish takes, so no claim mixes old and new. Where a limit changes other than to more units, what
// was claimed under it and has not started is recalled; where its usage may not reach back far enough,
// it stays shut until that has been counted (open.go). Publishing the same rules again changes nothing.
func Publish(ctx context.Context, pool *pgxpool.Pool, rules Rules, by string) ([]string, error) {
	if err := rules.check(); err != nil {
		return nil, err
	}
	hash, err := rules.hash()
	if err != nil {
		return nil, err
	}
	return publish(ctx, pool, by, func(ctx context.Context, p *publication) error {
		return p.apply(ctx, rules, hash)
	})
}

// publish runs one publication under the publishers' lock, in a transaction of its own, which must see what was
// committed while it waited for its locks.
func publish(ctx context.Context, pool *pgxpool.Pool, by string, run func(context.Context, *publication) error) ([]string, error) {
	var changes []string
	if _, err := enterEpoch(ctx, pool); err != nil {
		return nil, err
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		p := publication{tx: tx, by: by}
		if err := p.lock(ctx); err != nil {
			return err
		}
		if err := run(ctx, &p); err != nil {
			return err
		}
		changes = p.changes
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("publish limits and queues: %w", err)
	}
	return changes, nil
}

func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// publication is one change of what is in force.
type publication struct {
	tx      pgx.Tx
	by      string
	rules   Rules // what is to be in force
	changes []string
	audit   [][3]string // what, name, change
	put     []string    // limits that were written
	dropped []string    // limits that were taken away
	recall  []string    // queues whose unstarted attempts are recalled
	wake    []string    // queues whose keys may no longer be blocked
}

// lock lets one publisher at a time through; claims do not take this lock. Whatever the connection is set to,
// Postgres ends the transaction of a process that is frozen in it: it holds what claims and other publishers wait for.
func (p *publication) lock(ctx context.Context) error {
	lock := mutex{name: "publish", wait: true}
	var batch pgx.Batch
	batch.Queue(`SELECT set_config('idle_in_transaction_session_timeout', '5s', true)`)
	lock.ask(&batch)
	if err := p.tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("wait for other publishers: %w", err)
	}
	return nil
}

// queueRow is a queue's row as it stands.
type queueRow struct {
	Name        string        `db:"name"`
	Limits      []string      `db:"limits"`
	On          string        `db:"on_label"`
	MaxAttempts int           `db:"max_attempts"`
	BackoffMin  time.Duration `db:"backoff_min"`
	BackoffMax  time.Duration `db:"backoff_max"`
	Timeout     time.Duration `db:"timeout"`
	OnLost      string        `db:"on_lost"`
	Hours       []string      `db:"hours"`
}

// bring brings what is in force to rules. It needs the publishers' lock.
func (p *publication) bring(ctx context.Context, rules Rules) error {
	p.rules = rules
	queues, err := collect[queueRow](ctx, p.tx, queueRowsSQL)
	if err != nil {
		return fmt.Errorf("read queues: %w", err)
	}
	limits, err := collect[limitRow](ctx, p.tx, limitRowsSQL)
	if err != nil {
		return fmt.Errorf("read limits: %w", err)
	}
	if err := p.publishQueues(ctx, queues); err != nil {
		return err
	}
	if err := p.publishLimits(ctx, limits); err != nil {
		return err
	}
	if err := p.publishBudgets(ctx); err != nil {
		return err
	}
	if err := p.recallUnstarted(ctx); err != nil {
		return err
	}
	return p.record(ctx)
}

func collect[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

const queueRowsSQL = `
SELECT name, limits, on_label, max_attempts, backoff_min, backoff_max, timeout, on_lost, hours FROM call_queues ORDER BY name`

const limitRowsSQL = `
SELECT name, rate, window_size, shape, per_key, overrides, count_cost, coalesce(anchor, '') AS anchor, slack, send_within, hosts, retry_after, queues,
    config_rate, config_window, config_shape
FROM call_limits ORDER BY name`

// publishQueues writes the queues in name order, before any limit: the order of the claim.
func (p *publication) publishQueues(ctx context.Context, rows []queueRow) error {
	old := map[string]queueRow{}
	for _, row := range rows {
		old[row.Name] = row
	}
	rules := slices.SortedFunc(slices.Values(p.rules.Queues), func(a, b QueueRule) int { return strings.Compare(a.Name, b.Name) })
	for _, q := range rules {
		row, known := old[q.Name]
		delete(old, q.Name)
		if known && row.equal(q) {
			continue
		}
		if _, err := p.tx.Exec(ctx, putQueueSQL, pgx.StrictNamedArgs{
			"name": q.Name, "limits": append([]string{}, q.Limits...), "on": q.On, "max_attempts": q.MaxAttempts,
			"backoff_min": q.BackoffMin, "backoff_max": q.BackoffMax, "timeout": q.Timeout,
			"on_lost": q.OnLost, "hours": append([]string{}, q.Hours...),
		}); err != nil {
			return fmt.Errorf("write queue %q: %w", q.Name, err)
		}
		p.changed("queue", q.Name, q.String())
		p.wake = append(p.wake, q.Name)
		if known && (!slices.Equal(row.Limits, q.Limits) || row.On != q.On || !slices.Equal(row.Hours, q.Hours)) {
			p.recall = append(p.recall, q.Name)
		}
	}
	for _, row := range rows {
		if _, gone := old[row.Name]; !gone {
			continue
		}
		if _, err := p.tx.Exec(ctx, dropQueueSQL, row.Name); err != nil {
			return fmt.Errorf("take queue %q away: %w", row.Name, err)
		}
		p.changed("queue", row.Name, "taken away; its calls wait")
		p.recall = append(p.recall, row.Name)
	}
	return nil
}

func (row queueRow) equal(q QueueRule) bool {
	return slices.Equal(row.Limits, q.Limits) && row.On == q.On && row.MaxAttempts == q.MaxAttempts && row.Timeout == q.Timeout &&
		row.BackoffMin == q.BackoffMin && row.BackoffMax == q.BackoffMax && row.OnLost == q.OnLost && slices.Equal(row.Hours, q.Hours)
}

const putQueueSQL = `
INSERT INTO call_queues (name, limits, on_label, max_attempts, backoff_min, backoff_max, timeout, on_lost, hours)
VALUES (@name, @limits, @on, @max_attempts, @backoff_min, @backoff_max, @timeout, @on_lost, @hours)
ON CONFLICT (name) DO UPDATE
SET limits = excluded.limits, on_label = excluded.on_label, max_attempts = excluded.max_attempts,
    backoff_min = excluded.backoff_min, backoff_max = excluded.backoff_max, timeout = excluded.timeout, on_lost = excluded.on_lost,
    hours = excluded.hours`

const dropQueueSQL = `DELETE FROM call_queues WHERE name = $1`

// publishLimits writes the limits in name order. A limit that left the config keeps its row, for
// attempts that were claimed under it are still charged to it.
func (p *publication) publishLimits(ctx context.Context, rows []limitRow) error {
	old := map[string]limitRow{}
	for _, row := range rows {
		old[row.Name] = row
	}
	rules := slices.SortedFunc(slices.Values(p.rules.Limits), func(a, b LimitRule) int { return strings.Compare(a.Name, b.Name) })
	for _, l := range rules {
		was, known := old[l.Name]
		delete(old, l.Name)
		now := limitRow{
			Name: l.Name, PerKey: l.PerKey, Overrides: l.Overrides, CountCost: l.CountCost,
			Anchor: string(l.Anchor), Slack: l.Slack, SendWithin: l.SendWithin, Hosts: append([]string{}, l.Hosts...),
			RetryAfter: l.retryAfter(), Queues: p.rules.queuesOf(l.Name),
		}
		now.setRate(l.Rate)
		if !known {
			if err := p.change(ctx, nil, now); err != nil {
				return err
			}
			continue
		}
		if was.config() != nil && was.config().Comparable(l.Rate) && now.overridesFit(was.rate()) { // what an operator has set stays
			now.setConfig(&l.Rate)
			now.setRate(was.rate())
		}
		if err := p.change(ctx, &was, now); err != nil {
			return err
		}
	}
	for _, row := range rows {
		if _, gone := old[row.Name]; !gone || len(row.Queues) == 0 {
			continue
		}
		if _, err := p.tx.Exec(ctx, dropLimitSQL, row.Name, p.by); err != nil {
			return fmt.Errorf("take limit %q away: %w", row.Name, err)
		}
		p.dropped = append(p.dropped, row.Name)
		p.changed("limit", row.Name, "taken away")
	}
	return nil
}

// change writes a limit that is new or no longer as it was.
func (p *publication) change(ctx context.Context, was *limitRow, now limitRow) error {
	if was != nil && was.equal(now) {
		return p.noteUnversioned(ctx, *was, now)
	}
	if err := p.putLimit(ctx, was, now); err != nil {
		return err
	}
	p.put = append(p.put, now.Name)
	p.wake = append(p.wake, now.Queues...)
	p.changed("limit", now.Name, now.String())
	if was != nil && !was.onlyRaised(now) {
		p.recall = append(p.recall, was.Queues...)
	}
	return nil
}

// noteUnversioned writes down whose Retry-After closes the limit, where nothing else is new: that is of no version,
// and recalls nothing.
func (p *publication) noteUnversioned(ctx context.Context, was, now limitRow) error {
	if slices.Equal(was.Hosts, now.Hosts) && was.RetryAfter == now.RetryAfter {
		return nil
	}
	if _, err := p.tx.Exec(ctx, unversionedSQL, now.Name, now.Hosts, now.RetryAfter); err != nil {
		return fmt.Errorf("write limit %q: %w", now.Name, err)
	}
	p.changed("limit", now.Name, now.String())
	return nil
}

const unversionedSQL = `UPDATE call_limits SET hosts = $2, retry_after = $3 WHERE name = $1`

// given is m as jsonb takes it: {} where there is none.
func given(m map[string]int64) map[string]int64 {
	if m == nil {
		return map[string]int64{}
	}
	return m
}

// putLimit writes a limit that was another, or none.
func (p *publication) putLimit(ctx context.Context, was *limitRow, l limitRow) error {
	shut, bounded, less := true, false, int64(0)
	if was != nil {
		shut, bounded, less = was.reachesShort(l), was.bounded(l), was.less(l)
	}
	_, err := p.tx.Exec(ctx, putLimitSQL, pgx.StrictNamedArgs{
		"name": l.Name, "rate": l.Units, "window": l.Window, "shape": l.Shape, "bucket_width": l.rate().Bucket(),
		"per_key": l.PerKey, "overrides": given(l.Overrides), "count_cost": l.CountCost,
		"anchor": l.Anchor, "slack": l.Slack, "send_within": l.SendWithin, "hosts": l.Hosts, "retry_after": l.RetryAfter, "queues": l.Queues,
		"config_rate": l.ConfigRate, "config_window": l.ConfigWindow, "config_shape": l.ConfigShape,
		"by": p.by, "shut": shut, "bounded": bounded, "less": less,
	})
	if err != nil {
		return fmt.Errorf("write limit %q: %w", l.Name, err)
	}
	return nil
}

// published_at is read once the row's lock is held: claims under the former rules were before it.
const putLimitSQL = `
INSERT INTO call_limits AS l (name, version, rate, window_size, shape, bucket_width, per_key, overrides, count_cost, anchor,
    slack, send_within, hosts, retry_after, queues, config_rate, config_window, config_shape,
    published_at, published_by, complete_since, epoch)
SELECT @name, coalesce(max(c.version), 0) + 1, @rate, @window::interval, @shape::jsonb, @bucket_width::interval,
    @per_key::boolean, @overrides::jsonb, @count_cost::boolean, nullif(@anchor, ''),
    @slack::interval, @send_within::interval, @hosts::text[], @retry_after::interval, @queues::text[], @config_rate::bigint, @config_window::interval, @config_shape::jsonb,
    clock_timestamp(), @by, NULL, callq_epoch()
FROM call_limit_changes c WHERE c.limit_name = @name
ON CONFLICT (name) DO UPDATE
SET version = excluded.version, rate = excluded.rate, window_size = excluded.window_size, shape = excluded.shape,
    bucket_width = excluded.bucket_width, per_key = excluded.per_key, overrides = excluded.overrides, count_cost = excluded.count_cost,
    config_rate = excluded.config_rate, config_window = excluded.config_window, config_shape = excluded.config_shape,
    anchor = excluded.anchor, slack = excluded.slack, send_within = excluded.send_within, hosts = excluded.hosts, retry_after = excluded.retry_after, queues = excluded.queues,
    published_at = clock_timestamp(), published_by = excluded.published_by,
    complete_since = CASE WHEN @shut THEN NULL ELSE l.complete_since END,
    known_at = CASE WHEN @bounded THEN l.known_at END, known_less = l.known_less + @less::bigint`

const dropLimitSQL = `
UPDATE call_limits
SET version = version + 1, queues = '{}', published_at = clock_timestamp(), published_by = $2
WHERE name = $1`

// recallUnstarted recalls what was claimed under rules that hold no more.
func (p *publication) recallUnstarted(ctx context.Context) error {
	if len(p.recall) == 0 {
		return nil
	}
	n, err := ledger.Recall(ctx, p.tx, ledger.Unstarted{Queues: p.recall}, "its rules were changed")
	if n > 0 {
		p.changes = append(p.changes, fmt.Sprintf("%d unstarted attempts recalled", n))
	}
	return err
}

// wakeDispatchers has them look anew, where something changed.
func (p *publication) wakeDispatchers(ctx context.Context) error {
	if len(p.changes) == 0 {
		return nil
	}
	if _, err := p.tx.Exec(ctx, wakeSQL); err != nil {
		return fmt.Errorf("wake the dispatchers: %w", err)
	}
	return nil
}

const wakeSQL = `SELECT pg_notify('` + callqueue.WakeChannel + `', '` + callqueue.WakeFreed + `')`

// changed notes a change, for the caller and for the audit.
func (p *publication) changed(what, name, change string) {
	p.changes = append(p.changes, what+" "+name+": "+change)
	p.audit = append(p.audit, [3]string{what, name, change})
}

// record writes the new versions down. They are in force once nothing that was claimed under the
// former ones can start: what started until then had been admitted by those.
func (p *publication) record(ctx context.Context) error {
	for _, a := range p.audit {
		if _, err := p.tx.Exec(ctx, ledger.AuditSQL, p.by, a[0], a[1], a[2]); err != nil {
			return fmt.Errorf("write the audit: %w", err)
		}
	}
	if err := lines.WakeAll(ctx, p.tx, p.wake); err != nil {
		return err
	}
	if len(p.put)+len(p.dropped) == 0 {
		return nil
	}
	if err := missAfterFailover(ctx, p.tx, p.put); err != nil {
		return err
	}
	if _, err := p.tx.Exec(ctx, recordSQL, p.put, p.dropped); err != nil {
		return fmt.Errorf("record the limits' versions: %w", err)
	}
	return nil
}

const recordSQL = `
INSERT INTO call_limit_changes (limit_name, version, in_force_from, rate, window_size, shape, per_key, overrides, count_cost,
    anchor, slack, send_within, queues, published_by)
SELECT name, version, clock_timestamp(), CASE WHEN name = ANY($1) THEN rate END, window_size, shape, per_key, overrides, count_cost,
    anchor, slack, send_within, queues, published_by
FROM call_limits
WHERE name = ANY($1) OR name = ANY($2)`
