package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/pools"
	"github.com/jackc/pgx/v5"
)

// snapshot is what a claim sees before it looks at calls, under the locks of the queue and its limits.
type snapshot struct {
	queue     *policy.LockedQueue
	now       time.Time // Postgres's clock
	epoch     string
	hours     hours.Hours     // of the queue
	closes    *time.Time      // when its hours end; nil: it stays open
	drained   backlog.Drained // from the inbox
	from      int64           // no attempt of a smaller batch is open
	lowest    *int64          // the smallest batch of an open attempt; nil: there is none
	pools     *pools.Pools    // with the queue's label
	pausedFor time.Duration   // the queue, or one of its limits, as a whole
	keyPauses bool            // some keys may be paused
}

// look takes the locks, reads the clock, takes in what is new and due, and looks at workers and pauses. If nothing may be
// claimed, the claim ends early, with an outcome.
func (c *claimer) look(ctx context.Context, tx pgx.Tx, queue string, wait bool) (s *snapshot, early *outcome, err error) {
	s = &snapshot{}
	if s.queue, err = policy.LockQueue(ctx, tx, queue, wait, c.within); err != nil {
		return s, nil, err
	}
	if s.queue == nil {
		return s, &outcome{pollIn: busyRetry}, nil
	}
	if s.now, s.epoch, err = c.clock.read(ctx, tx); err != nil {
		return s, nil, err
	}
	if c.lowWater.wentBack(s.epoch, s.queue.Batch) {
		_ = tx.Rollback(ctx) // whoever locks all limits must hold none
		return s, &outcome{pollIn: minGap}, c.restored(ctx)
	}
	if s.queue.Former(s.epoch) {
		_ = tx.Rollback(ctx)
		c.clock.epoch = ""
		return s, &outcome{pollIn: minGap, more: true}, c.clock.noteEpoch(ctx, s.epoch)
	}
	if s.queue.Uncounted() {
		return s, restFor(time.Second), nil
	}
	// If this machine does not know a zone that the one which applied the hours knew, other dispatchers claim: nobody may guess.
	if s.hours, err = hours.Parse(s.queue.Hours); err != nil {
		return s, nil, fmt.Errorf("read the hours %q: %w", s.queue.Hours, err)
	}
	if s.drained, err = backlog.Drain(ctx, tx, queue, c.scan.since(queue), s.now); err != nil {
		return s, nil, err
	}
	s.from = c.lowWater.draw(s.epoch, s.queue.Batch)
	if err := s.lookAtWorkers(ctx, tx); err != nil {
		return s, nil, err
	}
	return s, c.mayClaim(s), nil
}

// restored enters the epoch anew after a restore in place, and forgets what was known of the data.
func (c *claimer) restored(ctx context.Context) error {
	entered, err := policy.EnterRestored(ctx, c.cfg.Pool, c.lowWater.keptAt)
	if err != nil {
		return err
	}
	c.cfg.Logger.WarnContext(ctx, "Postgres's data are older than what was committed, as after a restore")
	c.clock.logEntered(ctx, entered)
	c.lowWater, c.scan = lowWater{}, scanWindow{drained: map[string]time.Time{}}
	return nil
}

func (s *snapshot) lookAtWorkers(ctx context.Context, tx pgx.Tx) error {
	var asks pgx.Batch
	asks.Queue(pools.SQL, s.from).Query(func(rows pgx.Rows) (err error) {
		s.pools, err = pools.Collect(rows)
		return err
	})
	asks.Queue(pausedSQL, s.queue.Name, s.queue.LimitNames).QueryRow(func(row pgx.Row) error {
		return row.Scan(&s.pausedFor, &s.keyPauses)
	})
	if err := tx.SendBatch(ctx, &asks).Close(); err != nil {
		return fmt.Errorf("look at workers and pauses: %w", err)
	}
	s.lowest, s.pools = s.pools.OpenFrom, s.pools.On(s.queue.Label)
	return nil
}

// A pause without an end is looked at again in a day.
const pausedSQL = `
WITH rules AS (
    SELECT 'queue' AS what, $1 AS name UNION ALL SELECT 'limit', unnest($2::text[])
)
SELECT
    (SELECT coalesce(max(least(p.until, clock_timestamp() + interval '1 day')) - clock_timestamp(), '0')
     FROM rules r JOIN call_pauses p ON p.what = r.what AND p.name = r.name AND p.key = '' AND p.until > clock_timestamp()),
    EXISTS (SELECT FROM rules r JOIN call_pauses p ON p.what = r.what AND p.name = r.name AND p.key > '')`

// pausedKeys returns which of these keys are paused, and for how long.
func (s *snapshot) pausedKeys(ctx context.Context, tx pgx.Tx, keys []string) (map[string]time.Duration, error) {
	paused := map[string]time.Duration{}
	if !s.keyPauses || len(keys) == 0 {
		return paused, nil
	}
	rows, _ := tx.Query(ctx, pausedKeysSQL, s.queue.Name, s.queue.LimitNames, keys)
	var key string
	var wait time.Duration
	if _, err := pgx.ForEachRow(rows, []any{&key, &wait}, func() error {
		paused[key] = max(paused[key], wait)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("look at paused keys: %w", err)
	}
	return paused, nil
}

const pausedKeysSQL = `
SELECT p.key, least(p.until, clock_timestamp() + interval '1 day') - clock_timestamp()
FROM (SELECT 'queue' AS what, $1 AS name UNION ALL SELECT 'limit', unnest($2::text[])) r
CROSS JOIN unnest($3::text[]) AS k (key)
JOIN call_pauses p ON p.what = r.what AND p.name = r.name AND p.key = k.key
WHERE k.key <> '' AND p.until > clock_timestamp()`
