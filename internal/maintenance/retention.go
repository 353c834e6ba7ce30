// Package maintenance removes what has ended and is old enough, and vacuums the tables that calls
// go through. Every run may be interrupted, and any number may run at once.
package maintenance

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Retention says how long ended calls are kept.
type Retention struct {
	Done      time.Duration // default 7 days
	Failed    time.Duration // default 30 days
	Cancelled time.Duration // default 1 day
}

// WithDefaults returns r with the defaults where it says nothing.
func (r Retention) WithDefaults() Retention {
	const day = 24 * time.Hour
	return Retention{
		Done:      cmp.Or(r.Done, 7*day),
		Failed:    cmp.Or(r.Failed, 30*day),
		Cancelled: cmp.Or(r.Cancelled, day),
	}
}

// Purged counts what Purge removed.
type Purged struct {
	Calls    int64  `json:"calls"`
	Attempts int64  `json:"attempts"`
	Kept     int64  `json:"kept,omitempty"`        // rows that cannot be removed, as those that another table refers to
	KeptFor  string `json:"kept_reason,omitempty"` // of the last
}

const (
	purgeBatch = 1000 // rows that one transaction looks at, so that none is long
	maxKept    = 100  // rows in one run that cannot be removed: each takes ten transactions to find
)

// Purge removes calls that ended longer ago than keep says. Then it removes the attempts in the ledger
// whose call is gone and that no window reaches, and the versions of limits that no attempt refers to.
//
// Purge never frees a unit: what a limit has used does not depend on these rows while a window reaches
// them. Each batch is a transaction of its own. After each, progress, unless it is nil, gets the totals so far.
func Purge(ctx context.Context, pool *pgxpool.Pool, keep Retention, progress func(Purged)) (Purged, error) {
	var p Purged
	note := func() {
		if progress != nil {
			progress(p)
		}
	}
	calls := walk{"purge calls", purgeCallsSQL, `SELECT min(id) FROM call_queue WHERE id > $1`, keep.args(), &p.Calls}
	if err := calls.run(ctx, pool, &p, note); err != nil {
		return p, fmt.Errorf("purge calls: %w", err)
	}
	const nextSQL = `SELECT min(call_id) FROM call_attempts WHERE call_id > $1`
	attempts := walk{"purge attempts", purgeAttemptsSQL, nextSQL, pgx.StrictNamedArgs{}, &p.Attempts}
	if err := attempts.run(ctx, pool, &p, note); err != nil {
		return p, fmt.Errorf("purge attempts: %w", err)
	}
	if _, err := pool.Exec(ctx, `SELECT callq_purge_versions()`); err != nil {
		return p, fmt.Errorf("remove versions of limits: %w", err)
	}
	return p, nil
}

// args are the ages, for oldEnough.
func (r Retention) args() pgx.StrictNamedArgs {
	r = r.WithDefaults()
	return pgx.StrictNamedArgs{"done": r.Done, "failed": r.Failed, "cancelled": r.Cancelled}
}

// walk runs a statement, a transaction each time, on the ids behind a stored place until it is past all of them, and
// then on those before that place. The place is shared: where one run was cut off the next goes on, and several at once
// share the walk.
type walk struct {
	name, sql string
	nextSQL   string // the first id behind another
	args      pgx.StrictNamedArgs
	removed   *int64
}

// run calls note after each transaction. Where a row spoils the statement, fewer are looked at, in the end that one
// alone, which is passed over.
func (w walk) run(ctx context.Context, pool *pgxpool.Pool, p *Purged, note func()) error {
	most := purgeBatch
	began, last, passedEnd := int64(-1), int64(0), false
	for {
		var at, removed int64
		var next *int64 // nil: the end
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, placeSQL, w.name).Scan(&at); err != nil {
				return err
			}
			w.args["after"], w.args["most"] = at, most
			if err := tx.QueryRow(ctx, w.sql, w.args).Scan(&next, &removed); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, moveSQL, w.name, next)
			return err
		})
		if ledger.Spoiled(err) {
			if most > 1 {
				most /= 2
				continue
			}
			p.Kept, p.KeptFor = p.Kept+1, ledger.Reason(err)
			if p.Kept > maxKept {
				return fmt.Errorf("stopped after %d rows that cannot be removed: %w", p.Kept, err)
			}
			if err = pool.QueryRow(ctx, w.nextSQL, at).Scan(&next); err == nil {
				_, err = pool.Exec(ctx, moveSQL, w.name, next)
			}
		}
		if err != nil {
			return err
		}
		most = min(2*most, purgeBatch)
		*w.removed += removed
		note()
		if began < 0 {
			began = at
		}
		ended := next == nil || at < last // or another run has been past the end
		if ended && (began == 0 || passedEnd) || passedEnd && *next >= began {
			return nil
		}
		passedEnd, last = passedEnd || ended, 0
		if next != nil {
			last = *next
		}
	}
}

// placeSQL locks the place of a walk: one batch at a time.
const placeSQL = `
INSERT INTO call_meta AS m (name, position) VALUES ($1, 0)
ON CONFLICT (name) DO UPDATE SET position = m.position
RETURNING position`

const moveSQL = `UPDATE call_meta SET position = coalesce($2, 0) WHERE name = $1`

// oldEnough is of a call q, or NULL. One with an open attempt stays: it was cancelled while it ran.
const oldEnough = `(q.finished_at < clock_timestamp() - CASE q.status
            WHEN 'done' THEN @done::interval WHEN 'failed' THEN @failed::interval WHEN 'cancelled' THEN @cancelled::interval END
      AND NOT EXISTS (SELECT 1 FROM call_open o WHERE o.call_id BETWEEN q.id AND q.id))`

const purgeCallsSQL = `
WITH seen AS MATERIALIZED (
    SELECT id FROM call_queue WHERE id > @after ORDER BY id LIMIT @most
), old AS MATERIALIZED (
    SELECT q.id
    FROM seen s JOIN call_queue q ON q.id BETWEEN s.id AND s.id
    WHERE ` + oldEnough + `
    ORDER BY s.id
    FOR UPDATE OF q SKIP LOCKED
), removed AS (
    DELETE FROM call_queue q USING old WHERE q.id BETWEEN old.id AND old.id
    RETURNING 1
)
SELECT (SELECT max(id) FROM seen), (SELECT count(*) FROM removed)`

// outOfReach is of an attempt a that no window needs: reachSQL, as r, says how far they go back. Twice the
// longest window leaves room for one that is raised.
const (
	reachSQL   = `SELECT 2 * coalesce(max(window_size), '0') + interval '10 minutes' AS back FROM call_limits`
	outOfReach = `NOT EXISTS (SELECT 1 FROM call_open o WHERE o.call_id BETWEEN a.call_id AND a.call_id)
      AND coalesce(a.arrived_by, a.finished_at) < clock_timestamp() - r.back`
)

// The mark says up to where the ledger may lack rows. It keeps a limit shut whose window would
// reach behind it (policy.Backfill).
const purgeAttemptsSQL = `
WITH seen AS MATERIALIZED (
    SELECT call_id, attempt FROM call_attempts WHERE call_id > @after ORDER BY call_id, attempt LIMIT @most
), whole AS MATERIALIZED (
    -- the last call of the batch may continue behind it: it is seen again by the next
    SELECT call_id, attempt FROM seen
    WHERE (SELECT count(*) FROM seen) < @most OR call_id < (SELECT max(call_id) FROM seen)
       OR (SELECT min(call_id) = max(call_id) FROM seen)
), reach AS (` + reachSQL + `
), removed AS (
    DELETE FROM call_attempts a
    USING whole w, reach r
    WHERE a.call_id = ANY (ARRAY[w.call_id]) AND a.attempt = w.attempt
      AND NOT EXISTS (SELECT 1 FROM call_queue q WHERE q.id BETWEEN a.call_id AND a.call_id)
      AND ` + outOfReach + `
    RETURNING a.arrived_by
), marked AS (
    INSERT INTO call_meta AS m (name, at)
    SELECT 'ledger', max(arrived_by) FROM removed HAVING max(arrived_by) IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET at = greatest(m.at, excluded.at)
)
SELECT (SELECT max(call_id) FROM whole), (SELECT count(*) FROM removed)`
