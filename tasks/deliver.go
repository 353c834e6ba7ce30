package tasks

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// slots are the places for attempts. An attempt has one from its delivery until its outcome is recorded.
type slots struct {
	tokens   chan struct{}  // one per running attempt
	attempts sync.WaitGroup // those that were delivered and have not ended
	returned atomic.Int64   // attempts that draining gave back unstarted
}

func (s *slots) nearlyFull() bool { return 4*len(s.tokens) >= 3*cap(s.tokens) }

// take waits for a free slot; false: ctx has ended.
func (s *slots) take(ctx context.Context) bool {
	select {
	case s.tokens <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if ctx.Err() != nil {
		<-s.tokens
		return false
	}
	return true
}

// deliver runs a message's attempts, each in a slot of its own. It returns when each of them has
// started, or never will: from then on the message is of no use, and Redis can add nothing.
func (w *Worker) deliver(message handoff.Message) {
	attempts := w.attemptsOf(message)
	var answered sync.WaitGroup
	answered.Add(len(attempts))
	for _, a := range attempts {
		a.message = &answered
		w.slots.attempts.Add(1)
		if w.slots.take(w.serving) {
			a.begin()
		} else {
			a.handBack()
		}
	}
	answered.Wait()
}

// attemptsOf makes what is to run of a message. What a custom handler needs comes with the start's
// answer; the http task needs it before, for it asks for the start once it has connected.
func (w *Worker) attemptsOf(message handoff.Message) []*attempt {
	if w.handlers[message.Task] == nil {
		return w.load(message.Attempts)
	}
	list := make([]*attempt, len(message.Attempts))
	for i, r := range message.Attempts {
		list[i] = w.newAttempt(r)
		list[i].Task, list[i].Frees = message.Task, true // unless the answer says otherwise
	}
	return list
}

const loadWithin = 30 * time.Second

// load reads the attempts that are still open and unstarted, of calls that still are; the others are no longer this
// delivery's to run. While Postgres is away it tries again for as long as they may be started.
func (w *Worker) load(refs []handoff.Ref) (list []*attempt) {
	ctx, cancel := context.WithTimeout(w.handling, loadWithin)
	defer cancel()
	retry(ctx, 250*time.Millisecond, func() (err error) {
		if list, err = w.loadOnce(ctx, refs); err != nil && w.draining() {
			cancel() // recovery hands them over again
		}
		return err
	}, func(err error) {
		w.log.WarnContext(ctx, "attempts not loaded", "attempts", len(refs), "err", err)
	})
	return list
}

// loadOnce loads the attempts in one statement. One whose row cannot be read, or has too much call_data, is refused.
func (w *Worker) loadOnce(ctx context.Context, refs []handoff.Ref) (list []*attempt, err error) {
	err = ledger.Apart(refs, func(some []handoff.Ref) error {
		ids, attempts := make([]int64, len(some)), make([]int32, len(some))
		for i, r := range some {
			ids[i], attempts[i] = r.CallID, r.Attempt
		}
		rows, _ := w.db.Query(ctx, loadSQL, pgx.StrictNamedArgs{"ids": ids, "attempts": attempts}) // CollectRows returns its error
		loaded, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*attempt, error) {
			a := w.newAttempt(handoff.Ref{})
			err := row.Scan(&a.callID, &a.number, &a.epoch, &a.Queue, &a.Task, &a.Key, &a.Cost, &a.Data, &a.CreatedAt, &a.FailedCount,
				&a.Policy.MaxAttempts, &a.Policy.BackoffMin, &a.Policy.BackoffMax, &a.Timeout, &a.Limits, &a.Keys, &a.Frees)
			if a.Data == nil {
				a.refused = errTooLarge
			}
			return a, err
		})
		list = append(list, loaded...)
		return err
	}, func(r handoff.Ref, err error) {
		a := w.newAttempt(r)
		a.refused = unreadable(err)
		list = append(list, a)
	})
	return list, err
}

const loadSQL = `
SELECT o.call_id, o.attempt, o.epoch, o.queue, o.task, o.key, o.cost, ` + ledger.DataSQL + ` AS call_data,
    ` + ledger.CreatedAtSQL + ` AS created_at, q.failed_count,` + ledger.PolicySQL + `,
    ` + ledger.TimeoutSQL + ` AS timeout,
    o.limits, o.keys,
    EXISTS (SELECT FROM call_limits l WHERE l.name = ANY(o.limits) AND l.window_size = '0') AS frees
FROM unnest(@ids::bigint[], @attempts::int[]) AS a (call_id, attempt)
JOIN call_open o ON o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt
JOIN call_queue q ON q.id BETWEEN o.call_id AND o.call_id AND q.attempts = o.attempt AND q.status = 'dispatched'
LEFT JOIN call_queues r ON r.name BETWEEN o.queue AND o.queue
WHERE o.started_at IS NULL
ORDER BY a.call_id`
