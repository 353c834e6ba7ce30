package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrRate says that a limit cannot have a rate.
var ErrRate = errors.New("it cannot have this rate")

// Override puts a rate in force instead of the configuration's, until Reset. If it is lower, unstarted attempts are
// recalled: once Override returns, nothing starts beyond the new rate. It returns what changed, a line each. by says
// who, for the audit. The error is ledger.ErrUnknown if there is no such limit.
func Override(ctx context.Context, pool *pgxpool.Pool, name string, rate limit.Rate, by string) ([]string, error) {
	return onLimit(ctx, pool, "set", name, by, func(ctx context.Context, a *application, was limitRow) error {
		is, now := was.Rate, was
		to, err := is.Set(rate)
		switch atOnce := rate.Window == 0 && rate.Period == ""; {
		case is.Window == 0 && !atOnce:
			err = fmt.Errorf("set a whole number, such as %d", is.Units)
		case is.Window != 0 && atOnce:
			err = errors.New("set a rate, such as 100/1h")
		case err == nil && !was.overridesFit(to):
			err = errors.New("keys have units of their own in its window: set a rate of the same window, " +
				"or change the overrides in the configuration")
		}
		if err != nil {
			return fmt.Errorf("%w: it is %s: %w", ErrRate, is, err)
		}
		if was.Config == nil {
			now.Config = &is
		}
		now.Rate = to
		return a.changeLimit(ctx, was, now)
	})
}

// Reset puts the configuration's rate in force again.
func Reset(ctx context.Context, pool *pgxpool.Pool, name, by string) ([]string, error) {
	return onLimit(ctx, pool, "reset", name, by, func(ctx context.Context, a *application, was limitRow) error {
		now := was
		if was.Config != nil {
			now.Rate = *was.Config
			now.Config = nil
		}
		return a.changeLimit(ctx, was, now)
	})
}

// onLimit changes one limit that queues use. Their rows are locked first, as claims do it.
func onLimit(
	ctx context.Context, pool *pgxpool.Pool, verb, name, by string, change func(context.Context, *application, limitRow) error,
) ([]string, error) {
	changes, err := apply(ctx, pool, by, func(ctx context.Context, a *application) error {
		rows, err := collect(ctx, a.tx, pgx.RowToStructByName[limitRow], limitsSQL+` WHERE name = $1 AND queues <> '{}'`, name)
		if err != nil {
			return fmt.Errorf("read the limit: %w", err)
		}
		if len(rows) == 0 {
			return ledger.ErrUnknown
		}
		if _, err := a.tx.Exec(ctx, lockQueuesSQL, rows[0].Queues); err != nil {
			return fmt.Errorf("lock the queues: %w", err)
		}
		return change(ctx, a, rows[0])
	})
	if err != nil {
		return nil, fmt.Errorf("%s limit %q: %w", verb, name, err)
	}
	return changes, nil
}

const lockQueuesSQL = `SELECT FROM call_queues WHERE name = ANY($1) ORDER BY name COLLATE "C" FOR NO KEY UPDATE`

// ErrUncounted says that a limit cannot be opened yet.
var ErrUncounted = errors.New("what it has used is not counted yet: that waits until attempts under its former rule have ended")

// Open counts nothing as missing from a limit any more, on the word of an operator who knows what was sent. It returns
// what changed, a line each. reason and by, who, are for the audit and for verify. The error is ledger.ErrUnknown if there
// is no such limit, and ErrUncounted if it is closed until it is counted.
func Open(ctx context.Context, pool *pgxpool.Pool, name, reason, by string) ([]string, error) {
	return onLimit(ctx, pool, "open", name, by, func(ctx context.Context, a *application, row limitRow) error {
		locked, err := collect(ctx, a.tx, pgx.RowToStructByName[LockedLimit], LockLimitsSQL, []string{name})
		if err != nil {
			return fmt.Errorf("lock the limit: %w", err)
		}
		l := locked[0]
		if l.CompleteSince == nil {
			return ErrUncounted
		}
		var now time.Time
		if err := a.tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		missing := l.Missing(now, 0)
		if missing == nil {
			return nil
		}
		if _, err := a.tx.Exec(ctx, foundSQL, name); err != nil {
			return err
		}
		a.wake = row.Queues
		until := l.Rate().Passed(missing.Until, 0).UTC().Format(time.RFC3339)
		a.changed("limit", name, "opened: "+reason+" (what may be missing would have counted as used until "+until+")")
		return nil
	})
}

const foundSQL = `UPDATE call_limits SET missing_until = NULL, known_at = NULL, known_less = 0 WHERE name = $1`
