package tasks

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// beat tells the dispatchers, every beatEvery, that this worker lives and what it can take: nothing, while its
// Asynq queue is paused. It
// begins when the worker is live and stops when it drains, so that nothing more is sent to it.
func (w *Worker) beat(ctx context.Context) {
	lost, told := false, false
	for {
		if w.Ready() {
			err := w.beatOnce(ctx)
			if err == nil && !told { // there may be calls that waited for such a worker
				told = true
				w.wake()
			}
			if (err != nil) != lost && ctx.Err() == nil {
				lost = err != nil
				w.logReach(ctx, err)
			}
		}
		wait := beatEvery
		if !w.live.Load() || lost {
			wait = 50 * time.Millisecond
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

func (w *Worker) logReach(ctx context.Context, err error) {
	if err != nil {
		w.log.WarnContext(ctx, "waiting for Postgres", "err", err)
		return
	}
	w.log.InfoContext(ctx, "Postgres is back")
}

func (w *Worker) beatOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatEvery)
	defer cancel()
	slots := w.cfg.Concurrency
	if w.server.Load().Paused() {
		slots = 0
	}
	_, err := w.cfg.Pool.Exec(ctx, beatSQL, pgx.StrictNamedArgs{
		"id": w.id, "pool": w.pool, "tasks": w.Tasks(),
		"labels": append([]string{}, w.cfg.Labels...), "slots": slots, "http": w.httpSettings(),
	})
	return err
}

const beatSQL = `
INSERT INTO call_workers (id, pool, tasks, labels, slots, http, started_at, heartbeat_at)
VALUES (@id, @pool, @tasks, @labels, @slots, @http::jsonb, clock_timestamp(), clock_timestamp())
ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, slots = excluded.slots, http = excluded.http`

// leave says at once that the worker lives no more, so that nothing waits for its beats to be
// missed. The row stays for a while: it says which pool was last seen.
func (w *Worker) leave() {
	ctx, cancel := context.WithTimeout(w.recording, beatEvery)
	defer cancel()
	if _, err := w.cfg.Pool.Exec(ctx, leaveSQL, w.id); err != nil {
		w.log.WarnContext(ctx, "worker's row left to go stale", "worker", w.id, "err", err)
	}
}

const leaveSQL = `UPDATE call_workers SET heartbeat_at = heartbeat_at - interval '1 minute' WHERE id = $1`
