package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/httptask"
	"github.com/jackc/pgx/v5"
)

// HTTP is the name of the built-in task.
const HTTP = handoff.HTTP

// HTTPConfig is what the built-in task http, and the Call.Client of handlers, may do. Zero values mean the defaults.
type HTTPConfig = httptask.Config

// Secret is a header's value, or the end of it, that calls name and do not hold.
type Secret = httptask.Secret

// makeHTTP makes what sends requests: the task http, where the worker takes it, and handlers' clients.
func (w *Worker) makeHTTP() (err error) {
	if w.cfg.HTTP == nil || w.cfg.Client != nil {
		w.client, err = httptask.New(*cmp.Or(w.cfg.Client, &HTTPConfig{}), w.cfg.Concurrency, w.arrivals)
	}
	if w.cfg.HTTP == nil || err != nil {
		return err
	}
	task, err := httptask.New(*w.cfg.HTTP, w.cfg.Concurrency, w.arrivals)
	w.http.Store(task)
	return err
}

// Reload gives the task http other settings, which attempts have that begin from now on. Where it fails, all stays as it
// was. It is for a worker that was made with Config.HTTP.
func (w *Worker) Reload(cfg HTTPConfig) error {
	was := w.http.Load()
	if was == nil {
		return errors.New("tasks: the worker does not take the task http: it was made without Config.HTTP")
	}
	next, err := httptask.New(cfg, w.cfg.Concurrency, w.arrivals)
	if err != nil {
		return err
	}
	w.http.Store(next)
	was.Close()
	return nil
}

func (w *Worker) closeHTTP() {
	for _, task := range []*httptask.Task{w.http.Load(), w.client} {
		if task != nil {
			task.Close()
		}
	}
}

// httpSettings are the worker's, as JSON; nil: it does not take the task http.
func (w *Worker) httpSettings() *string {
	task := w.http.Load()
	if task == nil {
		return nil
	}
	text, _ := json.Marshal(task.Settings()) // strings always can
	return new(string(text))
}

// anotherMay reports whether another live worker that takes http calls of the queue may make a call that this one
// refused. It does so too where that could not be asked.
func (w *Worker) anotherMay(ctx context.Context, queue string, call *httptask.Call, refusal *httptask.RefusedError) bool {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, _ := w.db.Query(ctx, othersSQL, w.id, queue) // CollectRows returns its error
	others, err := pgx.CollectRows(rows, pgx.RowTo[httptask.Settings])
	return err != nil || slices.ContainsFunc(others, func(s httptask.Settings) bool { return s.May(call, refusal) })
}

const othersSQL = `
SELECT w.http
FROM callq.call_workers w
LEFT JOIN callq.call_queues q ON q.name = $2
WHERE callq.alive(w.heartbeat_at) AND w.id <> $1 AND 'http' = ANY(w.tasks)
  AND coalesce(q.label = '' OR q.label = ANY(w.labels), true)`
