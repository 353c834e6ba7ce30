package tasks

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const heartbeatEvery = 2 * time.Second

// heartbeat tells the dispatchers, every heartbeatEvery, that this worker is alive and what it can take: nothing, while its
// Asynq queue is paused. It begins when the worker takes attempts and stops when it drains, so that nothing more is sent
// to it.
func (w *Worker) heartbeat(ctx context.Context) {
	lost, told := false, false
	for {
		wait := 50 * time.Millisecond
		if w.Ready() {
			err := w.writeHeartbeat(ctx)
			if err == nil && !told { // there may be calls that waited for such a worker
				told = true
				w.recorder.wake()
			}
			if (err != nil) != lost && ctx.Err() == nil {
				if lost = err != nil; lost {
					w.log.WarnContext(ctx, "heartbeat failed", "err", err)
				} else {
					w.log.InfoContext(ctx, "heartbeat resumed")
				}
			}
		}
		if w.server.Load() != nil && !lost {
			wait = heartbeatEvery
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

func (w *Worker) writeHeartbeat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeatEvery)
	defer cancel()
	slots := w.cfg.Concurrency
	if w.server.Load().Paused() {
		slots = 0
	}
	_, err := w.db.Exec(ctx, heartbeatSQL, pgx.StrictNamedArgs{
		"id": w.id, "pool": w.pool, "tasks": w.Tasks(),
		"labels": append([]string{}, w.cfg.Labels...), "slots": slots, "http": w.httpSettings(),
	})
	return err
}

const heartbeatSQL = `
INSERT INTO call_workers (id, pool, tasks, labels, slots, http, started_at, heartbeat_at)
VALUES (@id, @pool, @tasks, @labels, @slots, @http::jsonb, clock_timestamp(), clock_timestamp())
ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, slots = excluded.slots, http = excluded.http`

// deregister says at once that the worker is no longer alive, so that nothing waits for its heartbeats to be
// missed. The row stays for a while: it says which pool was last seen.
func (w *Worker) deregister() {
	ctx, cancel := context.WithTimeout(w.recording, heartbeatEvery)
	defer cancel()
	if _, err := w.db.Exec(ctx, deregisterSQL, w.id); err != nil {
		w.log.WarnContext(ctx, "worker not deregistered", "worker", w.id, "err", err)
	}
}

const deregisterSQL = `UPDATE call_workers SET heartbeat_at = heartbeat_at - interval '1 minute' WHERE id = $1`
