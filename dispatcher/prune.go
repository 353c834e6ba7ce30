package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/callq/callq/internal/lines"
	"github.com/jackc/pgx/v5"
)

// pruneMost is how many calls in line a step looks at. It holds the queue's row for some 20 to 50 ms: claims get in
// between.
const pruneMost = 2000

// pruner takes ended calls out of the lines of queues where most have ended, for drainFor at most: looks of this
// dispatcher wait for it. What it has begun goes on at the next tick, through the whole queue, so that what it
// costs is bounded by how much ended. Each dispatcher goes through them for itself: that is harmless. whole goes on
// to the end.
func (d *Dispatcher) pruner(whole bool) func(context.Context) (int, error) {
	return func(ctx context.Context) (removed int, err error) {
		began := d.cfg.Now()
		crowded, err := lines.Crowded(ctx, d.cfg.Pool)
		if err != nil {
			return 0, err
		}
		for _, queue := range crowded {
			if _, begun := d.prunings[queue]; !begun {
				d.prunings[queue] = nil
			}
		}
		for _, queue := range slices.Sorted(maps.Keys(d.prunings)) {
			for on := true; on; {
				if d.stopping.Load() || !whole && d.cfg.Now().Sub(began) >= drainFor {
					return removed, nil
				}
				var n int64
				if n, on, err = d.prune(ctx, queue, whole); err != nil {
					return removed, fmt.Errorf("queue %q: %w", queue, err)
				}
				removed += int(n)
			}
		}
		return removed, nil
	}
}

// prune is a step through a queue's lines, a transaction under the lock that claims take. on is false at the end,
// and, without wait, where another holds the lock: a claim, or a dispatcher that prunes too.
func (d *Dispatcher) prune(tick context.Context, queue string, wait bool) (removed int64, on bool, err error) {
	ctx, cancel := context.WithTimeout(tick, d.claimWithin)
	defer cancel()
	lockSQL := lockQueueSQL
	if !wait {
		lockSQL += " SKIP LOCKED"
	}
	var step lines.Pruned
	locked := false
	err = pgx.BeginTxFunc(ctx, d.cfg.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, claimSettingsSQL, strconv.FormatInt(d.claimWithin.Milliseconds(), 10)); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, lockSQL, queue)
		if err != nil {
			return fmt.Errorf("lock the queue: %w", err)
		}
		if locked = tag.RowsAffected() > 0; !locked {
			return nil
		}
		step, err = lines.Prune(ctx, tx, queue, d.prunings[queue], pruneMost)
		return err
	})
	switch {
	case err != nil:
		return 0, false, err
	case !locked && !wait:
		return 0, false, nil
	case step.UpTo == nil: // through, or no longer in force
		delete(d.prunings, queue)
		return step.Removed, false, nil
	}
	d.prunings[queue] = step.UpTo
	return step.Removed, true, nil
}
