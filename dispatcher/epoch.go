package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// A limit that was there before a failover learns of it when it is claimed (enterEpoch). One that is
// published afterwards, or then given a longer window, must stay shut for as long as the others: what
// the old server gave out last may be unknown to the new one. So it is written down when the
// database's epoch was entered, by whoever first sees it: late is safe.

// noteEpoch writes down that the database has a new epoch, once for each that this process sees.
func (d *Dispatcher) noteEpoch(ctx context.Context, epoch string) error {
	if epoch == d.epoch {
		return nil
	}
	if err := noteEpoch(ctx, d.cfg.Pool); err != nil {
		return err
	}
	if err := d.hand.reopen(ctx); err != nil {
		return err
	}
	d.epoch = epoch
	return nil
}

func noteEpoch(ctx context.Context, db ledger.DB) error {
	rows, err := db.Query(ctx, noteEpochSQL)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		return fmt.Errorf("note the epoch: %w", err)
	}
	return nil
}

// One row, of the epoch that holds now. The first of all has no beginning: no other server had been
// before. Whoever is second finds the first's row.
const noteEpochSQL = `
WITH former AS (
    DELETE FROM call_marks WHERE name LIKE 'epoch %' AND name <> 'epoch ' || callq_epoch() RETURNING name
)
INSERT INTO call_marks (name, at)
SELECT 'epoch ' || callq_epoch(), CASE
    WHEN EXISTS (SELECT FROM former) OR EXISTS (SELECT FROM call_limits WHERE epoch <> callq_epoch()) THEN clock_timestamp() END
ON CONFLICT (name) DO NOTHING`

// shutAfterFailover shuts limits that are published until nothing that an old server gave out can count
// for them as they now are.
func shutAfterFailover(ctx context.Context, tx pgx.Tx, names []string) error {
	if err := noteEpoch(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, shutAfterFailoverSQL, names); err != nil {
		return fmt.Errorf("shut limits after a failover: %w", err)
	}
	return nil
}

// The limits' rows are locked: they have just been written.
const shutAfterFailoverSQL = `
UPDATE call_limits l
SET shut_until = greatest(l.shut_until, m.at + ` + mayCountForSQL + `)
FROM call_marks m
WHERE m.name = 'epoch ' || callq_epoch() AND m.at IS NOT NULL AND l.name = ANY($1) AND l.epoch = callq_epoch()`

// shutAfterRestore shuts all limits of a database that was restored in place, under this process: what was given out
// between the backup and the restore is in no table. (That the data are older than what was committed shows in
// the claims' numbers, which rise: openFrom.)
func (d *Dispatcher) shutAfterRestore(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, d.cfg.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM call_limits ORDER BY name COLLATE "C" FOR NO KEY UPDATE`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, shutAfterRestoreSQL)
		return err
	})
	if err != nil {
		return fmt.Errorf("shut the limits after a restore: %w", err)
	}
	d.log.WarnContext(ctx, "all limits shut: Postgres's data are older than what was committed, as after a restore")
	d.openFrom, d.reach = openFrom{}, reach{takenIn: map[string]time.Time{}}
	return nil
}

const shutAfterRestoreSQL = `UPDATE call_limits l SET shut_until = greatest(l.shut_until, clock_timestamp() + ` + mayCountForSQL + `)`

// mayCountForSQL is for how long after a failover a request of the old server may count for limit l. A
// handler whose claim or start never reached the new server may send until its timeout, unless the
// limit is anchored at the start.
const mayCountForSQL = `l.window_size * 1.001 + l.send_within + interval '5 seconds' + l.slack
    + CASE WHEN l.anchor = 'start' THEN interval '0' ELSE coalesce(
        (SELECT max(q.timeout) FROM call_queues q WHERE q.limits @> ARRAY[l.name]), '0') END`
