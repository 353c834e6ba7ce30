package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// clockWatch compares Postgres's clock with one that nobody sets. Whoever sees that Postgres's clock was set forward writes it
// down before using that clock, and every claim goes by what is written: a dispatcher that starts anew has not seen the step.
type clockWatch struct {
	cfg   *Config
	clock limit.Clock
	gains limit.Gains // as of the last reading
	epoch string      // the last that was noted
}

// read reads Postgres's clock in a statement that waits for no lock, after those that may have, and what that clock is known
// to have gained.
func (w *clockWatch) read(ctx context.Context, db handoff.DB) (now time.Time, epoch string, err error) {
	sent := w.cfg.Now()
	var at []time.Time
	var by []time.Duration
	if err := db.QueryRow(ctx, clockSQL).Scan(&now, &epoch, &at, &by); err != nil {
		return now, "", fmt.Errorf("read the clock: %w", err)
	}
	received := w.cfg.Now()
	gained, least := w.clock.Gained(now, sent, received)
	if gained <= -time.Microsecond { // less is none to Postgres
		w.cfg.Logger.WarnContext(ctx, "Postgres's clock was set back: for a while limits give out less", "by", -gained)
		if _, err := w.cfg.Pool.Exec(ctx, noteLossSQL, now, gained); err != nil {
			return now, "", fmt.Errorf("note that the clock was set back: %w", err)
		}
	}
	if lost := w.lostGains(now, at); gained > 0 || len(lost) > 0 {
		if err := w.note(ctx, lost, now, gained, least); err != nil {
			return now, "", fmt.Errorf("note what the clock gained: %w", err)
		}
		if err := w.cfg.Pool.QueryRow(ctx, gainsSQL).Scan(&at, &by); err != nil {
			return now, "", fmt.Errorf("read what the clock gained: %w", err)
		}
	}
	w.gains = w.gains[:0]
	for i := range at {
		w.gains = append(w.gains, limit.Gain{At: at[i], By: by[i]})
	}
	w.clock.Saw(now, sent, received)
	return now, epoch, nil
}

const (
	clockSQL = `SELECT clock_timestamp(), callq_epoch(), g.* FROM (` + gainsSQL + `) g`
	gainsSQL = `SELECT array_agg(at ORDER BY id), array_agg(by ORDER BY id) FROM call_clock_gains WHERE by > '0'`
)

// Units come free later, that is all. But the ledger's times are out of order, which verify must know.
const noteLossSQL = `INSERT INTO call_clock_gains (at, by) VALUES ($1, $2)`

// lostGains are those that were written and are no more, though too young to be tidied: a failover or restore lost them.
func (w *clockWatch) lostGains(now time.Time, at []time.Time) limit.Gains {
	return slices.DeleteFunc(slices.Clone(w.gains), func(g limit.Gain) bool {
		return !g.At.After(now.Add(-24*time.Hour)) || slices.ContainsFunc(at, g.At.Equal)
	})
}

// note writes lost gains down once more, and what was gained since the last reading, if anything, unless others have. It commits
// at once, whatever becomes of the claim that saw it.
func (w *clockWatch) note(ctx context.Context, lost limit.Gains, now time.Time, gained, least time.Duration) error {
	var writes pgx.Batch
	for _, g := range lost {
		writes.Queue(noteAgainSQL, g.At, g.By)
	}
	if gained > 0 {
		w.cfg.Logger.WarnContext(ctx, "Postgres's clock was set forward: for a while windows are longer by as much", "by", gained)
		writes.Queue(noteGainSQL, w.clock.Last(), now, gained, least)
	}
	return pgx.BeginTxFunc(ctx, w.cfg.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockGainsSQL); err != nil {
			return err
		}
		return tx.SendBatch(ctx, &writes).Close()
	})
}

// It goes ahead of the batch, not in it: what a batch prepares locks its tables first, and two that hold those locks deadlock.
const lockGainsSQL = `LOCK TABLE call_clock_gains IN SHARE ROW EXCLUSIVE MODE`

const noteAgainSQL = `
INSERT INTO call_clock_gains (at, by) SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM call_clock_gains WHERE at = $1)`

// What others saw since this process looked last is the same step; measured more loosely here, it is a little more.
const noteGainSQL = `
INSERT INTO call_clock_gains (at, by)
SELECT $2, $3::interval - by
FROM (SELECT coalesce(sum(by), '0') AS by FROM call_clock_gains WHERE at > $1 AND by > '0') known
WHERE $3::interval - by > $4::interval`

// gained is what the limit's window is widened by: what Postgres's clock gained while anything that still counts was under way.
func (w *clockWatch) gained(l policy.LockedLimit, now time.Time) time.Duration {
	return w.gains.Within(now, l.Window+limit.Margin(l.Window)+l.UnderWay)
}

// noteEpoch has the limits enter a new epoch, once for each that this process sees.
func (w *clockWatch) noteEpoch(ctx context.Context, epoch string) error {
	if epoch == w.epoch {
		return nil
	}
	entered, err := policy.EnterEpoch(ctx, w.cfg.Pool)
	if err != nil {
		return err
	}
	if entered > 0 {
		w.cfg.Logger.WarnContext(ctx, "after a failover the rest of each limit counts as used", "limits", entered)
	}
	w.epoch = epoch
	return nil
}
