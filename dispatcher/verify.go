package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/ledger/verify"
)

const (
	verifyWithin = 10 * time.Minute // for its snapshot keeps vacuums from removing what died since
	verifyBack   = 24 * time.Hour   // at least so far back it looks
	verifyApart  = 30 * time.Second // between the beginnings of two runs: dispatchers' clocks differ
	verifyNamed  = 10               // findings that are logged one by one
)

// verify verifies the ledger of the last day, or since the last run that came to its end if that is longer ago. One
// dispatcher at a time does. The result is in call_meta, from where every process has it as metrics.
func (d *Dispatcher) verify(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, verifyWithin)
	defer cancel()
	report, err := d.verifyOnce(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		d.cfg.Logger.WarnContext(ctx, "job cut short", "job", "verify", "within", verifyWithin, "err", err)
		return
	}
	d.logJob(ctx, "verify", err)
	if err != nil || report == nil {
		return
	}
	for _, v := range report.Findings[:min(len(report.Findings), verifyNamed)] {
		d.cfg.Logger.ErrorContext(ctx, "rule does not hold", "rule", v.Rule, "limit", v.Limit, "call", v.CallID, "attempt", v.Attempt, "detail", v.Detail)
	}
	d.cfg.Logger.InfoContext(ctx, "ledger verified", "since", *report.Since, "calls", report.Calls, "attempts", report.Attempts, "problems", len(report.Findings))
}

// verifyOnce returns nil if it is not this dispatcher's turn.
func (d *Dispatcher) verifyOnce(ctx context.Context) (*verify.Report, error) {
	pool := d.cfg.schemas().In(d.cfg.Pool) // it may take minutes, and claims need the dispatcher's own connections
	var now time.Time
	var last *time.Time
	err := pool.QueryRow(ctx, verifyTurnSQL, verifyWithin).Scan(&now, &last)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take the turn to verify: %w", err)
	}
	since := now.Add(-verifyBack)
	if last != nil && last.Before(since) {
		since = *last
	}
	report, err := verify.Run(ctx, pool, verify.Options{Since: since})
	if err != nil {
		free, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second) // it may have ended because ctx did
		defer cancel()
		_, freeErr := pool.Exec(free, verifyFreeSQL, now, verifyApart)
		return nil, errors.Join(err, freeErr)
	}
	if _, err := pool.Exec(ctx, verifiedSQL, now, verifyApart, len(report.Findings)); err != nil {
		return nil, fmt.Errorf("note what verify found: %w", err)
	}
	return report, nil
}

// A turn is over at the latest when the run is, also if its dispatcher died, or the clock was set back.
const verifyTurnSQL = `
INSERT INTO callq.call_meta AS m (name, at) VALUES ('verify', clock_timestamp() + $1::interval)
ON CONFLICT (name) DO UPDATE SET at = excluded.at WHERE m.at NOT BETWEEN clock_timestamp() AND excluded.at
RETURNING clock_timestamp(), (SELECT at FROM callq.call_meta WHERE name = 'verified')`

const verifyFreeSQL = `UPDATE callq.call_meta SET at = $1::timestamptz + $2::interval WHERE name = 'verify'`

const verifiedSQL = `
WITH free AS (` + verifyFreeSQL + `)
INSERT INTO callq.call_meta AS m (name, at, position) VALUES ('verified', $1, $3)
ON CONFLICT (name) DO UPDATE SET at = excluded.at, position = excluded.position`
