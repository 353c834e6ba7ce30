package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// open learns from Postgres which Asynq queue is the worker's, once Redis answers. It is nil when ctx ends before.
func (w *Worker) open(ctx context.Context) (broker *handoff.Broker) {
	await(ctx, func() error { return w.cfg.Redis.Ping(ctx).Err() }, func(err error) {
		w.log.WarnContext(ctx, "waiting for Redis", "err", err)
	})
	await(ctx, func() (err error) {
		broker, err = handoff.Open(ctx, w.cfg.Redis, w.cfg.Pool)
		return err
	}, func(err error) {
		w.log.WarnContext(ctx, "waiting for Postgres", "err", err)
	})
	return broker
}

// await asks each second until there is no error, or ctx ends. The first error is said.
func await(ctx context.Context, ask func() error, say func(error)) {
	for said := false; ctx.Err() == nil; said = true {
		err := ask()
		if err == nil {
			return
		}
		if !said && ctx.Err() == nil {
			say(err)
		}
		pause(ctx, time.Second)
	}
}

// deliver runs a message's attempts, each in a slot of its own. It returns when each of them has
// started, or never will: from then on the message is of no use, and Redis can add nothing.
func (w *Worker) deliver(message handoff.Message) {
	attempts := w.attemptsOf(message)
	var settled sync.WaitGroup
	settled.Add(len(attempts))
	for _, a := range attempts {
		a.message = &settled
		w.running.Add(1)
		if w.takeSlot() {
			a.begin()
		} else {
			go a.handBack()
		}
	}
	settled.Wait()
}

// takeSlot waits for a free slot; false: the worker drains.
func (w *Worker) takeSlot() bool {
	select {
	case w.slots <- struct{}{}:
	case <-w.drain:
		return false
	}
	if w.draining.Load() {
		<-w.slots
		return false
	}
	return true
}

// attemptsOf makes what is to run of a message. What a handler of one's own needs comes with the start's
// answer; the http task needs it before, for it asks for the start once it has connected.
func (w *Worker) attemptsOf(message handoff.Message) []*attempt {
	if w.handlers[message.Task] == nil {
		return w.load(message.Attempts)
	}
	list := make([]*attempt, len(message.Attempts))
	for i, r := range message.Attempts {
		list[i] = w.newAttempt(r.CallID, r.Attempt)
		list[i].Task, list[i].Frees = message.Task, true // unless the answer says otherwise
	}
	return list
}

// load reads the attempts that are still open and unstarted; the others are no longer this
// delivery's to run. While Postgres is away it tries again for as long as they may be started.
func (w *Worker) load(refs []handoff.Ref) []*attempt {
	ctx, cancel := context.WithTimeout(w.handling, loadWithin)
	defer cancel()
	for said := false; ; said = true {
		rows, err := w.loadOnce(ctx, refs)
		if err == nil {
			return w.loaded(rows)
		}
		if !said {
			w.log.WarnContext(ctx, "hand-over waits for Postgres", "attempts", len(refs), "err", err)
		}
		select {
		case <-w.drain:
			return nil // the sweeper hands them over again
		default:
		}
		if !pause(ctx, 250*time.Millisecond) {
			return nil
		}
	}
}

const loadWithin = 30 * time.Second

// delivered is an open attempt as loadSQL reads it.
type delivered struct {
	ledger.Work
	callID        int64
	attempt       int32
	epoch         string
	gone, expired bool
}

func (w *Worker) loadOnce(ctx context.Context, refs []handoff.Ref) ([]delivered, error) {
	ids, attempts := make([]int64, len(refs)), make([]int32, len(refs))
	for i, r := range refs {
		ids[i], attempts[i] = r.CallID, r.Attempt
	}
	rows, err := w.cfg.Pool.Query(ctx, loadSQL, pgx.StrictNamedArgs{"ids": ids, "attempts": attempts})
	if err != nil {
		return nil, fmt.Errorf("load attempts: %w", err)
	}
	loaded, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d delivered, err error) {
		return d, row.Scan(&d.callID, &d.attempt, &d.epoch, &d.Queue, &d.Task, &d.Key, &d.Cost, &d.Data, &d.CreatedAt, &d.gone, &d.expired, &d.FailedCount,
			&d.Policy.MaxAttempts, &d.Policy.BackoffMin, &d.Policy.BackoffMax, &d.Timeout, &d.Limits, &d.Keys, &d.Frees)
	})
	if err != nil {
		return nil, fmt.Errorf("load attempts: %w", err)
	}
	return loaded, nil
}

const loadSQL = `
SELECT o.call_id, o.attempt, o.epoch, o.queue, o.task, o.key, o.cost,
    coalesce(q.call_data, '{}') AS call_data,
    ` + ledger.CreatedAtSQL + ` AS created_at,
    q.id IS NULL AS gone,
    coalesce(q.expires_at <= clock_timestamp(), false) AS expired,
    coalesce(q.failed_count, 0) AS failed_count,` + ledger.PolicySQL + `,
    ` + ledger.TimeoutSQL + ` AS timeout,
    o.limits, o.keys,
    EXISTS (SELECT FROM call_limits l WHERE l.name = ANY(o.limits) AND l.window_size = '0') AS frees
FROM unnest(@ids::bigint[], @attempts::int[]) AS a (call_id, attempt)
JOIN call_open o ON o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt
LEFT JOIN call_queue q ON q.id BETWEEN o.call_id AND o.call_id AND q.attempts = o.attempt AND q.status = 'dispatched'
LEFT JOIN call_queues r ON r.name BETWEEN o.queue AND o.queue
WHERE o.started_at IS NULL
ORDER BY a.call_id`

// loaded makes what is to run; what cannot is closed here.
func (w *Worker) loaded(rows []delivered) []*attempt {
	list := make([]*attempt, 0, len(rows))
	for _, row := range rows {
		a := w.newAttempt(row.callID, row.attempt)
		a.Work, a.epoch = row.Work, row.epoch
		switch {
		case row.gone:
			w.record(*a.unsent(errCallGone, 0))
		case row.expired:
			w.record(*a.expired())
		default:
			list = append(list, a)
		}
	}
	return list
}

// startAll, closeAll and acknowledgeAll are the grouped statements behind the worker's batches.
func (w *Worker) startAll(ctx context.Context, requests []ledger.StartRequest) ([]ledger.StartAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	answers, err := ledger.Start(ctx, w.cfg.Pool, w.id, requests)
	if ledger.Busy(err) {
		return ledger.StartFree(ctx, w.cfg.Pool, w.id, requests)
	}
	return answers, err
}

// startApart starts an attempt whose row somebody held, and waits for nobody.
func (w *Worker) startApart(ctx context.Context, request ledger.StartRequest) (ledger.StartAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	answers, err := ledger.StartFree(ctx, w.cfg.Pool, w.id, []ledger.StartRequest{request})
	if err != nil {
		return ledger.StartAnswer{}, err
	}
	return answers[0], nil
}

// What closeAll answers of each closing is whether its row is free.
func (w *Worker) closeAll(ctx context.Context, closings []ledger.Closing) ([]error, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	_, err := ledger.Close(ctx, w.cfg.Pool, closings)
	if ledger.Busy(err) {
		return w.closeFree(ctx, closings)
	}
	if err != nil {
		return nil, err
	}
	w.tellFreed(closings)
	return make([]error, len(closings)), nil
}

// closeFree closes those whose rows nobody else holds, and waits for none.
func (w *Worker) closeFree(ctx context.Context, closings []ledger.Closing) ([]error, error) {
	_, busy, err := ledger.CloseFree(ctx, w.cfg.Pool, closings)
	if err != nil {
		return nil, err
	}
	w.tellFreed(closings)
	answers := make([]error, len(closings))
	for i, c := range closings {
		if slices.Contains(busy, c.CallID) {
			answers[i] = ledger.ErrBusy
		}
	}
	return answers, nil
}

func (w *Worker) acknowledgeAll(ctx context.Context, acks []ledger.Ack) ([]struct{}, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	return make([]struct{}, len(acks)), ledger.Acknowledge(ctx, w.cfg.Pool, acks)
}

const statementTimeout = 5 * time.Second

// record writes an outcome, and tries until it is written: only then may the slot be used again.
// Closing twice is harmless, so an unknown result is simply tried again. One whose row errs, or is held by somebody's
// transaction, is tried apart from the others, which would wait with it.
func (w *Worker) record(c ledger.Closing) { w.recordBy(w.closings.Do, c) }

func (w *Worker) recordBy(closings func(context.Context, ledger.Closing) (busy, err error), c ledger.Closing) {
	said := false
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		busy, err := closings(w.recording, c)
		if err = cmp.Or(err, busy); errors.Is(err, ledger.ErrBusy) || ledger.Spoiled(err) {
			closings = w.closeApart
		}
		switch {
		case err == nil:
			return
		case ledger.BadData(err) && c.Result != nil:
			w.log.WarnContext(w.recording, "result dropped", "call", c.CallID, "attempt", c.Attempt, "err", err)
			c.Result = nil // Postgres does not take it as jsonb; the outcome matters more
			continue
		case ledger.BadData(err) && c.Error != inASCII(c.Error):
			c.Error = inASCII(c.Error) // the database's encoding does not have it
			continue
		}
		if !said {
			w.log.WarnContext(w.recording, "outcome waits for Postgres", "call", c.CallID, "attempt", c.Attempt, "err", err)
			said = true
		}
		if !pause(w.recording, wait) {
			return
		}
	}
}

// inASCII is a text that every database can hold.
func inASCII(text string) string {
	var b strings.Builder
	for _, c := range text {
		if c < utf8.RuneSelf {
			b.WriteRune(c)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(c), "'"))
		}
	}
	return b.String()
}

func (w *Worker) closeApart(ctx context.Context, c ledger.Closing) (busy, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	answers, err := w.closeFree(ctx, []ledger.Closing{c})
	if err != nil {
		return nil, err
	}
	return answers[0], nil
}
