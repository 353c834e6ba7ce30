package claim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// clockWatch compares Postgres's clock with one that is never set. The dispatcher that sees Postgres's clock set forward writes it
// down before using that clock, and every claim goes by what is written: a dispatcher that starts anew has not seen the step.
type clockWatch struct {
	cfg   *Config
	clock limit.Clock
	gains limit.Gains // as of the last reading
	epoch string      // the last that was entered
	asks  string      // the last that workers were asked about, and since when
	asked time.Time
}

// reading is one of Postgres's clock, and what that clock is known to have gained.
type reading struct {
	now            time.Time
	epoch          string
	gains          limit.Gains
	sent, received time.Time // monotonic, before it was asked for and when it had arrived
}

// ask has a batch read the clock, after whatever in it may wait for a lock. If you use the reading's times, send it at once.
func (w *clockWatch) ask(b *pgx.Batch) *reading {
	r := &reading{sent: w.cfg.Now()}
	b.Queue(clockSQL).Query(func(rows pgx.Rows) error {
		var at *time.Time
		var by *time.Duration
		_, err := pgx.ForEachRow(rows, []any{&r.now, &r.epoch, &at, &by}, func() error {
			if at != nil {
				r.gains = append(r.gains, limit.Gain{At: *at, By: *by})
			}
			return nil
		})
		r.received = w.cfg.Now()
		return err
	})
	return r
}

// read reads the clock.
func (w *clockWatch) read(ctx context.Context, db backlog.DB) (*reading, error) {
	var b pgx.Batch
	r := w.ask(&b)
	if err := db.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	return r, w.saw(ctx, r)
}

// saw compares a reading with one before, and notes what the clock gained or lost in between.
func (w *clockWatch) saw(ctx context.Context, r *reading) error {
	gained, known, least := w.clock.Gained(r.now, r.sent, r.received, r.gains.All())
	if gained <= -time.Microsecond { // less is none to Postgres
		w.cfg.Log.WarnContext(ctx, "Postgres's clock was set back: for a while limits give out less", "by", -gained)
		if _, err := w.cfg.DB.Exec(ctx, noteLossSQL, r.now, gained); err != nil {
			return fmt.Errorf("note that the clock was set back: %w", err)
		}
	}
	written := r.gains
	if lost := w.lostGains(r); gained > 0 || len(lost) > 0 {
		noted, err := w.note(ctx, lost, r.now, gained, gained+known, least)
		if err != nil {
			return fmt.Errorf("note what the clock gained: %w", err)
		}
		written = noted.gains
	}
	w.gains = written
	w.clock.Saw(r.now, r.sent, r.received, gained, written.All())
	return nil
}

const clockSQL = `
SELECT clock_timestamp(), (SELECT callq.epoch()), g.at, g.by
FROM (SELECT) one LEFT JOIN callq.call_clock_gains g ON g.by > '0'
ORDER BY g.id`

// Units come free later, that is all. But the ledger's times are out of order, which verify must know.
const noteLossSQL = `INSERT INTO callq.call_clock_gains (at, by) VALUES ($1, $2)`

// lostGains are those that were written and are no more, though too young to be tidied: a failover or restore lost them.
func (w *clockWatch) lostGains(r *reading) limit.Gains {
	return slices.DeleteFunc(slices.Clone(w.gains), func(g limit.Gain) bool {
		return !g.At.After(r.now.Add(-24*time.Hour)) || slices.ContainsFunc(r.gains, func(is limit.Gain) bool { return is.At.Equal(g.At) })
	})
}

// note writes lost gains down once more, and what was gained, if anything, unless others have: in all it is sum since clock.From. It
// commits at once, whatever becomes of the claim that saw it, and returns another reading.
func (w *clockWatch) note(ctx context.Context, lost limit.Gains, now time.Time, gained, sum, least time.Duration) (noted *reading, err error) {
	var writes pgx.Batch
	for _, g := range lost {
		writes.Queue(noteAgainSQL, g.At, g.By)
	}
	if gained > 0 {
		w.cfg.Log.WarnContext(ctx, "Postgres's clock was set forward: for a while windows are longer by as much", "by", gained)
		writes.Queue(noteGainSQL, w.clock.From(), now, sum, least)
	}
	noted = w.ask(&writes)
	return noted, pgx.BeginTxFunc(ctx, w.cfg.DB, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockGainsSQL); err != nil {
			return err
		}
		return tx.SendBatch(ctx, &writes).Close()
	})
}

// It goes ahead of the batch, not in it: what a batch prepares locks its tables first, and two that hold those locks deadlock.
const lockGainsSQL = `LOCK TABLE callq.call_clock_gains IN SHARE ROW EXCLUSIVE MODE`

const noteAgainSQL = `
INSERT INTO callq.call_clock_gains (at, by) SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM callq.call_clock_gains WHERE at = $1)`

// What was seen since the reading that gains count from is the same step; measured more loosely here, it is a little more.
const noteGainSQL = `
INSERT INTO callq.call_clock_gains (at, by)
SELECT $2, $3::interval - by
FROM (SELECT coalesce(sum(by), '0') AS by FROM callq.call_clock_gains WHERE at > $1 AND by > '0') known
WHERE $3::interval - by > $4::interval`

// noteEpoch has the limits enter a new epoch, once for each that this process sees. It returns false while workers are being
// asked whether anything is missing.
func (w *clockWatch) noteEpoch(ctx context.Context, epoch string) (entered bool, err error) {
	if epoch == w.epoch {
		return true, nil
	}
	asks := w.asks == epoch
	if !asks {
		w.asks, w.asked = epoch, w.cfg.Now()
	}
	e, err := policy.EnterEpoch(ctx, w.cfg.DB, w.cfg.Failover, w.cfg.Now().Sub(w.asked))
	if err != nil {
		return false, err
	}
	switch {
	case e.Verdict == policy.Waiting && asks:
		return false, nil
	case e.Verdict == policy.Waiting:
		w.cfg.Log.InfoContext(ctx, "Postgres failed over: workers are asked whether anything is missing")
		return false, nil
	case e.Judged && e.Verdict == policy.Whole:
		w.cfg.Log.InfoContext(ctx, "Postgres failed over, and nothing is missing: limits stay as they were", "limits", e.Limits, "why", e.Why)
	case e.Judged:
		w.cfg.Log.WarnContext(ctx, "Postgres failed over, and what it had committed last may be missing: the rest of each limit counts as used, "+
			"and calls that were made since may be made again", "limits", e.Limits, "why", e.Why, "since", e.LivedAt, "until", e.SeenAt)
	}
	w.epoch = epoch
	return true, nil
}
