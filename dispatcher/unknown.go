package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// commit commits a claim. Where the answer is lost, it asks what became of it, so that what was opened
// is handed over now, and not when the sweeper finds it. While that cannot be learnt, nothing is
// handed over: the sweeper does so later.
func (d *Dispatcher) commit(ctx, tick context.Context, tx pgx.Tx, queue string, b *batch) error {
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	if len(b.attempts) == 0 || !outcomeUnknown(err) {
		return fmt.Errorf("commit: %w", err)
	}
	opened, askErr := d.readBack(tick, queue, b)
	switch {
	case askErr != nil:
		return fmt.Errorf("commit: %w; whether it took place was not learnt: %w", err, askErr)
	case len(opened) == 0:
		return fmt.Errorf("commit: it did not take place: %w", err)
	}
	b.attempts = opened
	d.log.InfoContext(ctx, "claim was committed, though its answer was lost", "queue", queue, "attempts", len(opened), "err", err)
	return nil
}

// outcomeUnknown says whether a commit that failed with err may have taken place all the same. (What
// pgx 5.12 calls safe to retry is no answer: it calls a connection so that broke while it waited for one.)
func outcomeUnknown(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return false
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return !ok || pg.SeverityUnlocalized != "ERROR" // what is worse ends the session, at any moment
}

// readBack reads which of the batch's attempts are open and still to be handed over. It takes the
// locks that the claim took: a commit under way, which may wait for a standby, holds them until it is
// visible, and a transaction that was cut off until Postgres has ended it. (A queue that has gone from the
// config meanwhile has no row to lock: who removed that had its lock.)
func (d *Dispatcher) readBack(tick context.Context, queue string, b *batch) ([]claimed, error) {
	ctx, cancel := context.WithTimeout(tick, d.claimWithin)
	defer cancel()
	tx, err := d.cfg.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := d.lockQueue(ctx, tx, queue, true); err != nil {
		return nil, err
	}
	ids := make([]int64, len(b.attempts))
	for i, a := range b.attempts {
		ids[i] = a.CallID
	}
	rows, err := tx.Query(ctx, readBackSQL, ids, b.id)
	if err != nil {
		return nil, fmt.Errorf("read the batch: %w", err)
	}
	opened, err := pgx.CollectRows(rows, pgx.RowToStructByName[claimed])
	if err != nil {
		return nil, fmt.Errorf("read the batch: %w", err)
	}
	return opened, nil
}

// What has been sent again meanwhile is under way by another's hand.
const readBackSQL = `
SELECT call_id, attempt, parcel_no
FROM call_open
WHERE call_id = ANY($1::bigint[]) AND batch = $2 AND started_at IS NULL AND resend = 0
ORDER BY parcel_no, call_id`
