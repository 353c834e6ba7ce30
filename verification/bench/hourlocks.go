package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const locksEvery = 20 * time.Millisecond

// lockWait is for how long a session waited for a lock, and with which statement.
type lockWait struct {
	ms    float64
	query string
}

// lockWatch looks again and again who waits for a lock, and since when. It does not see a wait that begins and ends between two
// looks, and of others not what comes after the last look: so it misses locksEvery of each at most, unless the machine is late.
type lockWatch struct {
	cancel context.CancelFunc
	ended  chan error

	mu      sync.Mutex // guards what follows
	longest lockWait   // since it was last taken
}

// watchLocks watches until stop is called, on a connection of its own.
func watchLocks(ctx context.Context, url string) (*lockWatch, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &lockWatch{cancel: cancel, ended: make(chan error, 1)}
	go func() {
		err := w.run(ctx, conn)
		w.ended <- errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}()
	return w, nil
}

func (w *lockWatch) run(ctx context.Context, conn *pgx.Conn) error {
	tick := time.NewTicker(locksEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		var wait lockWait
		err := conn.QueryRow(ctx, lockWaitSQL).Scan(&wait.ms, &wait.query)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("look at locks: %w", err)
		}
		w.mu.Lock()
		if wait.ms > w.longest.ms {
			w.longest = wait
		}
		w.mu.Unlock()
	}
}

// pg_locks, which takes locks itself, is read only while somebody waits.
const lockWaitSQL = `
SELECT 1000 * extract(epoch FROM clock_timestamp() - l.waitstart)::float, left(regexp_replace(trim(a.query), '\s+', ' ', 'g'), 80)
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND l.waitstart IS NOT NULL AND EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')
ORDER BY l.waitstart
LIMIT 1`

// take is the longest wait since the last take.
func (w *lockWatch) take() lockWait {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := w.longest
	w.longest = lockWait{}
	return longest
}

func (w *lockWatch) stop() error {
	w.cancel()
	return <-w.ended
}
