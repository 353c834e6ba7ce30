package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// KindError says that a rate was to be set for calls at once, or the other way round.
type KindError struct {
	Name string
	Is   limit.Rate // in force
}

func (e KindError) Error() string {
	if e.Is.Window == 0 {
		return fmt.Sprintf("%s is %s: set a whole number, such as %d", e.Name, e.Is, e.Is.Units)
	}
	return fmt.Sprintf("%s is %s: set a rate, such as 100/1h", e.Name, e.Is)
}

// RateError says that the limit cannot have this rate.
type RateError struct {
	Name string
	Is   limit.Rate // in force
	Why  error
}

func (e RateError) Error() string { return fmt.Sprintf("%s is %s: %s", e.Name, e.Is, e.Why) }

func (e RateError) Unwrap() error { return e.Why }

// Override puts a rate in force instead of the configuration's, until Reset. If it is lower, unstarted attempts are
// recalled: once Override returns, nothing starts beyond the new rate. It returns what changed, a line each. by says
// who, for the audit. The error is ledger.ErrUnknown if there is no such limit.
func Override(ctx context.Context, pool *pgxpool.Pool, name string, rate limit.Rate, by string) ([]string, error) {
	return override(ctx, pool, name, by, func(l limitRow) (limitRow, error) {
		is := l.rate()
		if (is.Window == 0) != (rate.Window == 0 && rate.Period == "") {
			return l, KindError{name, is}
		}
		now, err := is.Set(rate)
		if err != nil {
			return l, RateError{name, is, err}
		}
		if !l.overridesFit(now) {
			return l, RateError{name, is, errors.New("keys have units of their own in its window: set a rate of the same window, or change the overrides in the configuration")}
		}
		if l.config() == nil {
			l.setConfig(&is)
		}
		l.setRate(now)
		return l, nil
	})
}

// Reset puts the configuration's rate in force again.
func Reset(ctx context.Context, pool *pgxpool.Pool, name, by string) ([]string, error) {
	return override(ctx, pool, name, by, func(l limitRow) (limitRow, error) {
		if config := l.config(); config != nil {
			l.setRate(*config)
			l.setConfig(nil)
		}
		return l, nil
	})
}

func override(ctx context.Context, pool *pgxpool.Pool, name, by string, change func(limitRow) (limitRow, error)) ([]string, error) {
	changes, err := apply(ctx, pool, by, func(ctx context.Context, a *application) error {
		limits, err := collect[limitRow](ctx, a.tx, limitRowsSQL)
		if err != nil {
			return fmt.Errorf("read limits: %w", err)
		}
		i := slices.IndexFunc(limits, func(l limitRow) bool { return l.Name == name && len(l.Queues) > 0 })
		if i < 0 {
			return ledger.ErrUnknown
		}
		now, err := change(limits[i])
		if err != nil {
			return err
		}
		if err := a.lockQueues(ctx, limits[i].Queues); err != nil {
			return err
		}
		return a.change(ctx, &limits[i], now)
	})
	if err != nil {
		return nil, fmt.Errorf("set limit %q: %w", name, err)
	}
	return changes, nil
}

// ErrUncounted says that a limit cannot be opened yet.
var ErrUncounted = errors.New("what it has used is not counted yet: that waits until attempts under its former rule have ended")

// Open counts nothing as missing from a limit any more, on the word of an operator who knows what was sent. It returns
// what changed, a line each. reason and by, who, are for the audit and for verify. The error is ledger.ErrUnknown if there
// is no such limit, and ErrUncounted if it is closed until it is counted.
func Open(ctx context.Context, pool *pgxpool.Pool, name, reason, by string) ([]string, error) {
	changes, err := apply(ctx, pool, by, func(ctx context.Context, a *application) error {
		err := a.tx.QueryRow(ctx, queuesOfSQL, name).Scan(&a.wake)
		if errors.Is(err, pgx.ErrNoRows) {
			return ledger.ErrUnknown
		}
		if err != nil {
			return fmt.Errorf("read the limit: %w", err)
		}
		if err := a.lockQueues(ctx, a.wake); err != nil {
			return err
		}
		return a.open(ctx, name, reason)
	})
	if err != nil {
		return nil, fmt.Errorf("open limit %q: %w", name, err)
	}
	return changes, nil
}

func (a *application) open(ctx context.Context, name, reason string) error {
	locked, err := collect[LockedLimit](ctx, a.tx, LockLimitsSQL, []string{name})
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
	until := l.Rate().Passed(missing.Until, 0).UTC().Format(time.RFC3339)
	a.changed("limit", name, "opened: "+reason+" (what may be missing would have counted as used until "+until+")")
	return nil
}

const queuesOfSQL = `SELECT queues FROM call_limits WHERE name = $1 AND cardinality(queues) > 0`

const foundSQL = `UPDATE call_limits SET missing_until = NULL, known_at = NULL, known_less = 0 WHERE name = $1`
