package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrUncounted says that a limit cannot be opened yet.
var ErrUncounted = errors.New("what it has used is not counted yet: that waits until attempts under its former rule have ended")

// OpenLimit has nothing missing from a limit any more, on the word of an operator who knows what was sent. It says, a line
// each, what changed. reason and by, who, are for the audit and for verify. The error is ledger.ErrUnknown where there is no
// such limit, ErrUncounted where it is shut until it is counted.
func OpenLimit(ctx context.Context, pool *pgxpool.Pool, name, reason, by string) ([]string, error) {
	if _, err := enterEpoch(ctx, pool); err != nil { // what it finds missing is opened too
		return nil, err
	}
	var changes []string
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		p := publication{tx: tx, by: by}
		if err := p.lock(ctx); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, usedBySQL, name).Scan(&p.wake); errors.Is(err, pgx.ErrNoRows) {
			return ledger.ErrUnknown
		} else if err != nil {
			return fmt.Errorf("read the limit: %w", err)
		}
		if err := p.lockQueues(ctx, p.wake); err != nil {
			return err
		}
		locked, err := collect[lockedLimit](ctx, tx, lockLimitsSQL, []string{name})
		switch {
		case err != nil:
			return fmt.Errorf("lock the limit: %w", err)
		case locked[0].CompleteSince == nil:
			return ErrUncounted
		}
		var now time.Time
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		l := locked[0]
		m := l.missing(now, 0)
		if m == nil {
			return nil
		}
		if _, err := tx.Exec(ctx, foundSQL, name); err != nil {
			return err
		}
		until := l.rate().Passed(m.Until, 0).UTC().Format(time.RFC3339)
		p.changed("limit", name, ledger.OpenedPrefix+reason+" (what may be missing would have counted as used until "+until+")")
		changes = p.changes
		if err := p.wakeDispatchers(ctx); err != nil {
			return err
		}
		return p.record(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("open limit %q: %w", name, err)
	}
	return changes, nil
}

const usedBySQL = `SELECT queues FROM call_limits WHERE name = $1 AND cardinality(queues) > 0`

const foundSQL = `UPDATE call_limits SET missing_until = NULL, known_at = NULL, known_less = 0 WHERE name = $1`
