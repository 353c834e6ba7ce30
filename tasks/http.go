package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/outcome"
	"github.com/jackc/pgx/v5"
)

// HTTP is the name of the built-in task.
const HTTP = handoff.HTTP

// HTTPConfig says what the built-in task http, and the Call.Client of handlers, may do. Zero values mean the defaults.
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
FROM call_workers w
LEFT JOIN call_queues q ON q.name = $2
WHERE callq_alive(w.heartbeat_at) AND w.id <> $1 AND 'http' = ANY(w.tasks)
  AND coalesce(q.label = '' OR q.label = ANY(w.labels), true)`

// shutLimits closes the limits of an attempt, for every worker, when the API answered that it wants
// no more requests for a while; where a limit is per key, for that key. A limit that names hosts is closed by those
// alone, and each for no longer than its retry_after: producers choose whom calls ask. It is done before the
// outcome is recorded, and tried once: without it the call alone waits.
func (a *attempt) shutLimits(s httptask.Sending) {
	later, ok := errors.AsType[*outcome.RetryAfterError](s.Err)
	if !ok || later.After <= 0 || len(a.Limits) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(a.w.recording, statementTimeout)
	defer cancel()
	rows, _ := a.w.db.Query(ctx, closableSQL, a.Limits, a.Keys) // CollectRows returns its error
	limits, err := pgx.CollectRows(rows, pgx.RowToStructByName[closable])
	if err != nil {
		a.w.log.WarnContext(ctx, "limits not closed for Retry-After", "limits", a.Limits, "err", err)
	}
	for _, l := range limits {
		if !s.From(l.Hosts) {
			continue
		}
		_, err := ledger.Pause(ctx, a.w.db, ledger.Paused{
			What: "limit", Name: l.Name, Key: l.Key, For: new(min(later.After, l.RetryAfter)), Extend: true, By: a.w.id,
			Reason: fmt.Sprintf("the API answered call %d: %s", a.callID, clean(s.Err.Error())),
		})
		if err != nil && !errors.Is(err, ledger.ErrUnknown) {
			a.w.log.WarnContext(ctx, "limit not closed for Retry-After", "limit", l.Name, "err", err)
		}
	}
}

// closable is a limit that answers may close.
type closable struct {
	Name, Key  string
	Hosts      []string      // whose answers; none: anybody's
	RetryAfter time.Duration // for so long at most
}

const closableSQL = `
SELECT l.name, a.key, l.hosts, l.retry_after
FROM unnest($1::text[], $2::text[]) AS a (name, key)
JOIN call_limits l ON l.name = a.name
WHERE l.retry_after > '0'`
