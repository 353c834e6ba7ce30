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

// prunings are passes that have begun: queue to where it has come, nil being the beginning.
type prunings struct {
	lines map[string]*lines.Place
	news  map[string]*lines.NewsPlace
}

func newPrunings() prunings {
	return prunings{lines: map[string]*lines.Place{}, news: map[string]*lines.NewsPlace{}}
}

// pruner takes ended calls out of the lines and news of queues where most have ended, for drainFor at most: looks of
// this dispatcher wait for it. What it has begun goes on at the next tick, through the whole queue, so that what it
// costs is bounded by how much ended. Each dispatcher goes through them for itself: that is harmless. whole goes on
// to the end.
func (d *Dispatcher) pruner(whole bool) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		began := d.cfg.Now()
		goOn := func() bool { return !d.stopping.Load() && (whole || d.cfg.Now().Sub(began) < drainFor) }
		crowded, err := lines.Crowded(ctx, d.cfg.Pool)
		if err != nil {
			return 0, err
		}
		begin(d.prunings.lines, crowded)
		removed, err := pass(d.prunings.lines, goOn, func(queue string) (int64, bool, error) { return d.prune(ctx, queue, whole) })
		if err != nil {
			return removed, err
		}
		news, err := pass(d.prunings.news, goOn, func(queue string) (int64, bool, error) { return d.pruneNews(ctx, queue) })
		return removed + news, err
	}
}

// begin adds passes through queues to those that have begun.
func begin[P any](passes map[string]*P, queues []string) {
	for _, queue := range queues {
		if _, begun := passes[queue]; !begun {
			passes[queue] = nil
		}
	}
}

// pass goes on with each pass, step by step, while it may.
func pass[P any](passes map[string]*P, goOn func() bool, step func(queue string) (removed int64, on bool, err error)) (removed int, err error) {
	for _, queue := range slices.Sorted(maps.Keys(passes)) {
		for on := true; on; {
			if !goOn() {
				return removed, nil
			}
			var n int64
			if n, on, err = step(queue); err != nil {
				return removed, fmt.Errorf("queue %q: %w", queue, err)
			}
			removed += int(n)
		}
	}
	return removed, nil
}

// pruneNews is a step through what waits in a queue to be due.
func (d *Dispatcher) pruneNews(ctx context.Context, queue string) (removed int64, on bool, err error) {
	next, removed, err := lines.PruneNews(ctx, d.cfg.Pool, queue, d.prunings.news[queue], pruneMost)
	if err != nil {
		return 0, false, err
	}
	d.prunings.news[queue] = next
	if next == nil {
		delete(d.prunings.news, queue)
	}
	return removed, next != nil, nil
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
		step, err = lines.Prune(ctx, tx, queue, d.prunings.lines[queue], pruneMost)
		return err
	})
	switch {
	case err != nil:
		return 0, false, err
	case !locked && !wait:
		return 0, false, nil
	case step.UpTo == nil: // through, or no longer in force
		delete(d.prunings.lines, queue)
		return step.Removed, false, nil
	}
	d.prunings.lines[queue] = step.UpTo
	return step.Removed, true, nil
}
