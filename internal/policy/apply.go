package policy

import (
	"context"
	"fmt"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Apply puts p in force: it changes the limits, queues and budgets in Postgres to it, and returns what changed, a line
// each. Applying the same policy again changes nothing. by says who, for the audit.
//
// Attempts that were claimed under a limit and have not started are recalled if the limit changes other than to more
// units. A limit whose usage may not reach back far enough stays closed until that is counted (Backfill).
func Apply(ctx context.Context, pool *pgxpool.Pool, p Policy, by string) ([]string, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	hash, err := p.Hash()
	if err != nil {
		return nil, err
	}
	changes, err := apply(ctx, pool, by, func(ctx context.Context, a *application) error { return a.apply(ctx, p, hash) })
	if err != nil {
		return nil, fmt.Errorf("apply limits and queues: %w", err)
	}
	return changes, nil
}

// apply runs one change of the policy in a transaction, under the lock that lets one applier through at a time.
// READ COMMITTED lets it see what was committed while it waited for its locks.
func apply(ctx context.Context, pool *pgxpool.Pool, by string, run func(context.Context, *application) error) ([]string, error) {
	if _, err := EnterEpoch(ctx, pool); err != nil {
		return nil, err
	}
	a := application{by: by}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		a.tx = tx
		if err := a.lock(ctx); err != nil {
			return err
		}
		if err := run(ctx, &a); err != nil {
			return err
		}
		return a.record(ctx)
	})
	return a.changes, err
}

// application is one change of what is in force.
type application struct {
	tx      pgx.Tx
	by      string
	changes []string
	audit   [][3]string // what, name, change
	put     []string    // limits that were written
	dropped []string    // limits that were removed
	recall  []string    // queues whose unstarted attempts are recalled
	wake    []string    // queues whose keys may be free again
}

// lock lets one applier through at a time; claims do not take this lock. If this process freezes while it holds the
// lock, Postgres ends its transaction: claims and other appliers wait for it.
func (a *application) lock(ctx context.Context) error {
	lock := rowLock{name: "apply", wait: true}
	var batch pgx.Batch
	batch.Queue(`SELECT set_config('idle_in_transaction_session_timeout', '5s', true)`)
	lock.queue(&batch)
	if err := a.tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("wait for other appliers: %w", err)
	}
	return nil
}

// lockQueues locks queues before any limit, as a claim does.
func (a *application) lockQueues(ctx context.Context, names []string) error {
	if _, err := a.tx.Exec(ctx, lockQueuesSQL, names); err != nil {
		return fmt.Errorf("lock the queues: %w", err)
	}
	return nil
}

const lockQueuesSQL = `SELECT FROM call_queues WHERE name = ANY($1) ORDER BY name COLLATE "C" FOR NO KEY UPDATE`

// apply puts p, whose hash is given, in force.
func (a *application) apply(ctx context.Context, p Policy, hash string) error {
	queues, err := collect[queueRow](ctx, a.tx, queueRowsSQL)
	if err != nil {
		return fmt.Errorf("read queues: %w", err)
	}
	limits, err := collect[limitRow](ctx, a.tx, limitRowsSQL)
	if err != nil {
		return fmt.Errorf("read limits: %w", err)
	}
	if err := a.applyQueues(ctx, p.Queues, queues); err != nil {
		return err
	}
	if err := a.applyLimits(ctx, p, limits); err != nil {
		return err
	}
	if err := a.applyBudgets(ctx, p.Budgets); err != nil {
		return err
	}
	return a.noteApplied(ctx, hash)
}

func collect[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

// changed notes a change, for the caller and for the audit.
func (a *application) changed(what, name, change string) {
	a.changes = append(a.changes, what+" "+name+": "+change)
	a.audit = append(a.audit, [3]string{what, name, change})
}

// record ends an application: it recalls what was claimed under rules that no longer hold, writes the audit and the
// new versions, and wakes the dispatchers. A version is in force once nothing that was claimed under the former one can
// start; what had started until then was admitted by the former one.
func (a *application) record(ctx context.Context) error {
	if len(a.recall) > 0 {
		n, err := ledger.Recall(ctx, a.tx, ledger.Unstarted{Queues: a.recall}, "its rules were changed")
		if err != nil {
			return err
		}
		if n > 0 {
			a.changes = append(a.changes, fmt.Sprintf("%d unstarted attempts recalled", n))
		}
	}
	for _, entry := range a.audit {
		if _, err := a.tx.Exec(ctx, ledger.AuditSQL, a.by, entry[0], entry[1], entry[2]); err != nil {
			return fmt.Errorf("write the audit: %w", err)
		}
	}
	if err := backlog.WakeAll(ctx, a.tx, a.wake); err != nil {
		return err
	}
	if len(a.put)+len(a.dropped) > 0 {
		if err := missAfterFailover(ctx, a.tx, a.put); err != nil {
			return err
		}
		if _, err := a.tx.Exec(ctx, recordSQL, a.put, a.dropped); err != nil {
			return fmt.Errorf("record the limits' versions: %w", err)
		}
	}
	if len(a.changes) == 0 {
		return nil
	}
	if _, err := a.tx.Exec(ctx, wakeSQL); err != nil {
		return fmt.Errorf("wake the dispatchers: %w", err)
	}
	return nil
}

const wakeSQL = `SELECT pg_notify('` + callqueue.WakeChannel + `', '` + callqueue.WakeFreed + `')`

const recordSQL = `
INSERT INTO call_limit_versions (limit_name, version, effective_from, rate, window_size, shape, per_key, overrides, count_cost,
    anchor, slack, send_within, queues, applied_by)
SELECT name, version, clock_timestamp(), CASE WHEN name = ANY($1) THEN rate END, window_size, shape, per_key, overrides, count_cost,
    anchor, slack, send_within, queues, applied_by
FROM call_limits
WHERE name = ANY($1) OR name = ANY($2)`
