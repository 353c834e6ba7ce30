package policy

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/words"
	"github.com/jackc/pgx/v5"
)

// Apply puts p in force: it changes the limits, queues and budgets in Postgres to it, and returns what changed, a line
// each. Applying the same policy again changes nothing. by names the one who does, for the audit.
//
// Attempts that were claimed under a limit and have not started are recalled if the limit changes other than to more
// units. A limit whose usage may not reach back far enough stays closed until that is counted (Backfill).
func Apply(ctx context.Context, pool schema.DB, p Policy, by string) ([]string, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	changes, err := apply(ctx, pool, ledger.By(by), func(ctx context.Context, a *application) error { return a.apply(ctx, p) })
	return changes, ledger.Wrap("apply limits and queues", err)
}

// apply runs one change of the policy in a transaction, under the lock that lets one applier through at a time.
func apply(ctx context.Context, pool schema.DB, who ledger.Author, run func(context.Context, *application) error) ([]string, error) {
	if e, err := EnterEpoch(ctx, pool, unsaid, 0); err != nil {
		return nil, err
	} else if e.Verdict == Waiting {
		return nil, ErrUnjudged
	}
	a := application{who: who}
	err := begin(ctx, pool, func(tx pgx.Tx) error {
		a.tx = tx
		if tag, err := tx.Exec(ctx, lockAppliersSQL); err != nil {
			return fmt.Errorf("wait for other appliers: %w", err)
		} else if tag.RowsAffected() == 0 {
			return errNoLock
		}
		if err := run(ctx, &a); err != nil {
			return err
		}
		return a.record(ctx)
	})
	return a.changes, err
}

// ErrUnjudged means that nothing can be applied yet.
var ErrUnjudged = errors.New("after a failover of Postgres, dispatchers ask workers whether anything is missing: " +
	"see that a dispatcher runs, and try again in 10 s")

// begin runs a transaction whose statements see what was committed while they waited for locks.
func begin(ctx context.Context, pool schema.DB, run func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, run)
}

// Claims do not take this lock. If this process freezes while it holds the lock, Postgres ends its transaction: claims and
// other appliers wait for it.
const lockAppliersSQL = `
SELECT set_config('idle_in_transaction_session_timeout', '5s', true) FROM callq.call_locks WHERE name = 'apply' FOR UPDATE`

// application is one change of what is in force.
type application struct {
	tx      pgx.Tx
	who     ledger.Author
	changes []string
	audit   pgx.Batch // a row for each change
	put     []string  // limits that were written
	dropped []string  // limits that were removed
	recall  []string  // queues whose unstarted attempts are recalled
	wake    []string  // queues whose keys may be free again
}

// apply puts p in force. It writes the queues before the limits, each in name order, as a claim locks them.
func (a *application) apply(ctx context.Context, p Policy) error {
	if err := a.applyQueues(ctx, p.Queues); err != nil {
		return err
	}
	if err := a.applyLimits(ctx, p); err != nil {
		return err
	}
	if err := a.applyBudgets(ctx, p.Budgets); err != nil {
		return err
	}
	if err := a.applyRoutes(ctx, p.Routes); err != nil {
		return err
	}
	_, err := a.tx.Exec(ctx, noteAppliedSQL, p.hash(), a.who.By)
	return ledger.Wrap("note the policy", err)
}

const noteAppliedSQL = `
INSERT INTO callq.call_policies AS p (hash, number, applied_at, applied_by)
SELECT $1, coalesce(max(number), 0) + 1, clock_timestamp(), $2 FROM callq.call_policies
ON CONFLICT (hash) DO UPDATE
SET number = excluded.number, applied_at = excluded.applied_at, applied_by = excluded.applied_by
WHERE p.number < excluded.number - 1 -- else it is the newest already`

func (a *application) applyQueues(ctx context.Context, queues []Queue) error {
	rows, err := collect(ctx, a.tx, pgx.RowToStructByName[Queue], queuesSQL)
	if err != nil {
		return fmt.Errorf("read queues: %w", err)
	}
	old := map[string]Queue{}
	for _, row := range rows {
		old[row.Name] = row
	}
	names := []string{}
	for _, q := range queues {
		names = append(names, q.Name)
		was, known := old[q.Name]
		if reflect.DeepEqual(was, q) {
			continue
		}
		if _, err := a.tx.Exec(ctx, putQueueSQL, pgx.StrictStructArgs(q)); err != nil {
			return fmt.Errorf("write queue %q: %w", q.Name, err)
		}
		a.changed("queue", q.Name, q.String())
		a.wake = append(a.wake, q.Name)
		if known && (!slices.Equal(was.Limits, q.Limits) || was.On != q.On || was.Hours != q.Hours) {
			a.recall = append(a.recall, q.Name)
		}
	}
	gone, err := a.remove(ctx, "queue", "removed; its calls wait", dropQueuesSQL, names)
	a.recall = append(a.recall, gone...)
	return err
}

const queuesSQL = `
SELECT name, nullif(limits, '{}') AS limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost, hours,
    store, store_max, store_for, nullif(needs, '{}') AS needs, on_refused, max_refusals,
    coalesce(c.most, 0) AS max_waiting, coalesce(c.most_of_key, 0) AS max_waiting_per_key, coalesce(c.when_full, '') AS when_full
FROM callq.call_queues q LEFT JOIN callq.call_caps c ON c.queue = q.name`

const dropQueuesSQL = `
WITH uncapped AS (DELETE FROM callq.call_caps WHERE queue <> ALL($1))
DELETE FROM callq.call_queues WHERE name <> ALL($1) RETURNING name`

// putQueueSQL has the sums of a cap that is new, or begins to count keys, counted by recovery: until then it lets all in.
const putQueueSQL = `
WITH uncapped AS (
    DELETE FROM callq.call_caps WHERE queue = @name AND @max_waiting::bigint = 0 AND @max_waiting_per_key::bigint = 0
), capped AS (
    INSERT INTO callq.call_caps AS c (queue, most, most_of_key, when_full, since)
    SELECT @name, nullif(@max_waiting, 0), nullif(@max_waiting_per_key, 0), @when_full, pg_current_xact_id()
    WHERE (@max_waiting > 0 OR @max_waiting_per_key > 0) AND nextval('callq.call_ruled_seq') > 0
      AND NOT EXISTS ( -- a producer that adds sums up may hold the row
        SELECT FROM callq.call_caps c
        WHERE c.queue = @name AND (c.most, c.most_of_key, c.when_full) IS NOT DISTINCT FROM (nullif(@max_waiting, 0), nullif(@max_waiting_per_key, 0), @when_full))
    ON CONFLICT (queue) DO UPDATE
    SET most = excluded.most, most_of_key = excluded.most_of_key, when_full = excluded.when_full,
        since = CASE WHEN c.most_of_key IS NULL THEN excluded.since ELSE c.since END,
        counted = c.counted AND (c.most_of_key IS NOT NULL OR excluded.most_of_key IS NULL)
)
INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost, hours, store, store_max, store_for,
    needs, on_refused, max_refusals)
VALUES (@name, coalesce(@limits::text[], '{}'), @label, @max_attempts, @backoff_min, @backoff_max, @timeout, @on_lost, @hours,
    @store, @store_max, @store_for, coalesce(nullif(@needs::jsonb, 'null'), '{}'), @on_refused, @max_refusals)
ON CONFLICT (name) DO UPDATE
SET limits = excluded.limits, label = excluded.label, max_attempts = excluded.max_attempts, backoff_min = excluded.backoff_min,
    backoff_max = excluded.backoff_max, timeout = excluded.timeout, on_lost = excluded.on_lost, hours = excluded.hours,
    store = excluded.store, store_max = excluded.store_max, store_for = excluded.store_for, needs = excluded.needs,
    on_refused = excluded.on_refused, max_refusals = excluded.max_refusals`

// applyBudgets writes the budgets. Only the appliers' lock guards them: workers draw by what they read.
func (a *application) applyBudgets(ctx context.Context, budgets []Budget) error {
	names := make([]string, len(budgets))
	for i, b := range budgets {
		names[i] = b.Name
		tag, err := a.tx.Exec(ctx, putBudgetSQL, pgx.StrictNamedArgs{
			"name": b.Name, "rate": b.Rate.Units, "window": b.Rate.Window, "burst": b.Burst, "shape": b.BudgetShape,
			"on_outage": b.OnOutage, "by": a.who.By,
		})
		if err != nil {
			return fmt.Errorf("write budget %q: %w", b.Name, err)
		}
		if tag.RowsAffected() > 0 {
			a.changed("budget", b.Name, b.String())
		}
	}
	_, err := a.remove(ctx, "budget", "removed", `DELETE FROM callq.call_budgets WHERE name <> ALL($1) RETURNING name`, names)
	return err
}

// putBudgetSQL writes a budget that is new or has changed.
const putBudgetSQL = `
INSERT INTO callq.call_budgets AS b (name, rate, window_size, burst, shape, on_outage, applied_at, applied_by)
VALUES (@name, @rate, @window, @burst, @shape, @on_outage, clock_timestamp(), @by)
ON CONFLICT (name) DO UPDATE
SET rate = excluded.rate, window_size = excluded.window_size, burst = excluded.burst, shape = excluded.shape,
    on_outage = excluded.on_outage, applied_at = excluded.applied_at, applied_by = excluded.applied_by
WHERE (b.rate, b.window_size, b.burst, b.shape, b.on_outage)
    IS DISTINCT FROM (excluded.rate, excluded.window_size, excluded.burst, excluded.shape, excluded.on_outage)`

func collect[T any](ctx context.Context, db ledger.DB, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, _ := db.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, row)
}

// changed notes a change, for the caller and for the audit.
func (a *application) changed(what, name, change string) {
	a.changes = append(a.changes, what+" "+name+": "+change)
	ledger.Audit(&a.audit, a.who, what, name, change)
}

// remove removes what the policy no longer has, by a statement that returns the names.
func (a *application) remove(ctx context.Context, what, change, sql string, args ...any) (gone []string, err error) {
	if gone, err = collect(ctx, a.tx, pgx.RowTo[string], sql, args...); err != nil {
		return nil, fmt.Errorf("remove %ss: %w", what, err)
	}
	for _, name := range slices.Sorted(slices.Values(gone)) {
		a.changed(what, name, change)
	}
	return gone, nil
}

// record ends an application: it recalls what was claimed under rules that no longer hold, writes the audit and the
// new versions, and wakes the dispatchers. A version is in force once nothing that was claimed under the former one can
// start; what had started until then was admitted by the former one.
func (a *application) record(ctx context.Context) error {
	if len(a.changes) == 0 {
		return nil
	}
	if len(a.recall) > 0 {
		n, err := ledger.Recall(ctx, a.tx, "queue", a.recall, "", "its rules were changed")
		if err != nil {
			return err
		}
		if n > 0 {
			a.changes = append(a.changes, words.Count(int64(n), "unstarted attempt")+" recalled")
		}
	}
	if err := backlog.WakeAll(ctx, a.tx, a.wake); err != nil {
		return err
	}
	a.audit.Queue(missAfterFailoverSQL, a.put)
	a.audit.Queue(ledger.AwaitAheadSQL, limit.AheadMost) // it was claimed under the former versions
	a.audit.Queue(recordSQL, a.put, a.dropped)
	a.audit.Queue(`SELECT pg_notify('` + callqueue.WakeChannel + `', '` + callqueue.WakeFreed + `')`)
	return ledger.Wrap("record the changes", a.tx.SendBatch(ctx, &a.audit).Close())
}

const recordSQL = `
INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, shape, per_key, overrides,
    count_cost, anchor, slack, proof, arrive_within, send_within, queues, applied_by)
SELECT name, version, clock_timestamp(), CASE WHEN name = ANY($1) THEN rate END, window_size, shape, per_key, overrides,
    count_cost, anchor, slack, proof, arrive_within, send_within, queues, applied_by
FROM callq.call_limits
WHERE name = ANY($1) OR name = ANY($2)`
