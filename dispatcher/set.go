package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

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

// SettingError says that a rate is none that the limit could have.
type SettingError struct {
	Name string
	Is   limit.Rate // in force
	Why  error
}

func (e SettingError) Error() string { return fmt.Sprintf("%s is %s: %s", e.Name, e.Is, e.Why) }

func (e SettingError) Unwrap() error { return e.Why }

// SetLimit puts a rate in force instead of the config's, until ResetLimit. What was claimed under a
// higher one and has not started is recalled: once it returns, nothing starts beyond the new rate. It
// says, a line each, what changed; by is who, for the audit. The error is ledger.ErrUnknown where there
// is no such limit.
func SetLimit(ctx context.Context, pool *pgxpool.Pool, name string, rate limit.Rate, by string) ([]string, error) {
	return changeLimit(ctx, pool, name, by, func(l limitRow) (limitRow, error) {
		is := l.rate()
		if (is.Window == 0) != (rate.Window == 0 && rate.Period == "") {
			return l, KindError{name, is}
		}
		now, err := is.Set(rate)
		if err != nil {
			return l, SettingError{name, is, err}
		}
		if !l.overridesFit(now) {
			return l, SettingError{name, is, errors.New("keys have units of their own in its window: set a rate of the same window, or change the overrides in the configuration")}
		}
		if l.config() == nil {
			l.setConfig(&is)
		}
		l.setRate(now)
		return l, nil
	})
}

// ResetLimit puts the config's rate in force again.
func ResetLimit(ctx context.Context, pool *pgxpool.Pool, name, by string) ([]string, error) {
	return changeLimit(ctx, pool, name, by, func(l limitRow) (limitRow, error) {
		if config := l.config(); config != nil {
			l.setRate(*config)
			l.setConfig(nil)
		}
		return l, nil
	})
}

func changeLimit(ctx context.Context, pool *pgxpool.Pool, name, by string, change func(limitRow) (limitRow, error)) ([]string, error) {
	var changes []string
	if _, err := enterEpoch(ctx, pool); err != nil {
		return nil, err
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		p := publication{tx: tx, by: by}
		if err := p.lock(ctx); err != nil {
			return err
		}
		limits, err := collect[limitRow](ctx, tx, limitRowsSQL)
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
		if err := p.lockQueues(ctx, limits[i].Queues); err != nil {
			return err
		}
		if err := p.change(ctx, &limits[i], now); err != nil {
			return err
		}
		if err := p.recallUnstarted(ctx); err != nil {
			return err
		}
		changes = p.changes
		if err := p.wakeDispatchers(ctx); err != nil {
			return err
		}
		return p.record(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("set limit %q: %w", name, err)
	}
	return changes, nil
}

// lockQueues takes the queues' locks before any limit's: the order of the claim.
func (p *publication) lockQueues(ctx context.Context, names []string) error {
	if _, err := p.tx.Exec(ctx, lockQueuesSQL, names); err != nil {
		return fmt.Errorf("lock the queues: %w", err)
	}
	return nil
}

const lockQueuesSQL = `SELECT FROM call_queues WHERE name = ANY($1) ORDER BY name COLLATE "C" FOR NO KEY UPDATE`
