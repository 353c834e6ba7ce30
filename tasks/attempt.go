package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/outcome"
	"github.com/jackc/pgx/v5"
)

// attempt is one attempt on its way through this worker. It belongs to its message's delivery, and then to the goroutine
// that runs it to its end.
type attempt struct {
	ledger.Work
	w        *Worker
	callID   int64
	number   int32
	token    int64
	result   json.RawMessage
	store    string         // which answers its queue keeps
	storeMax int            // bytes of each
	again    *time.Duration // when a refused call may be claimed again; nil: it keeps its place
	settled  *int64         // the cost that the handler reported; nil: none
	code     int            // the HTTP status that came back; 0: none
	host     string         // where its request went
	took     time.Duration  // how long that took, or for how long the handler ran

	moments
	started bool  // durably; then Work is known
	refused error // why it was not, or cannot be; with started false, nil: the start was not asked for
	late    bool  // the gate refused its request: it came after send_within
	client  *httptask.Client
	message *sync.WaitGroup // done when the start is answered or will never be asked for; nil once it is
	place   *place          // in its run; nil: it is in none
}

// moments are of an attempt, by the monotonic clock.
type moments struct {
	notBefore time.Time     // until then its units are not free
	begun     time.Time     // when it was given its slot
	m0        time.Time     // before the start was asked for
	waited    time.Duration // from the start to its turn in a run
}

func (w *Worker) newAttempt(ref handoff.Ref) *attempt {
	return &attempt{w: w, callID: ref.CallID, number: ref.Attempt, token: rand.Int64() | 1} // never 0
}

// slots are the places for attempts. An attempt has one from its delivery until its outcome is recorded.
type slots struct {
	tokens   chan struct{}  // one per running attempt
	attempts sync.WaitGroup // those that were delivered and have not ended
}

func (s *slots) nearlyFull() bool { return 4*len(s.tokens) >= 3*cap(s.tokens) }

// take waits for a free slot; false: ctx has ended.
func (s *slots) take(ctx context.Context) bool {
	if ctx.Err() == nil {
		select {
		case s.tokens <- struct{}{}:
			return true
		case <-ctx.Done():
		}
	}
	return false
}

// deliver runs a message's attempts, each in a slot of its own. It returns when each of them has
// started, or never will: from then on the message is of no use, and Redis can add nothing.
func (w *Worker) deliver(message handoff.Message) {
	if message.Run {
		w.deliverRun(message)
		return
	}
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

// attemptsOf makes what is to run of a message that has just arrived. What a custom handler needs comes with the start's
// answer; the http task needs it before, for it asks for the start once it has connected.
func (w *Worker) attemptsOf(message handoff.Message) []*attempt {
	now := time.Now()
	var list []*attempt
	if w.handlers[message.Task] == nil {
		list = w.load(message.Attempts)
	} else {
		for _, r := range message.Attempts {
			a := w.newAttempt(r)
			a.Task, a.Frees = message.Task, true // Frees unless the answer differs
			list = append(list, a)
		}
	}
	for i, a := range list {
		if a != nil {
			a.notBefore = now.Add(message.Attempts[i].Wait)
		}
	}
	return slices.DeleteFunc(list, func(a *attempt) bool { return a == nil })
}

// load reads a message's attempts; nil: it is not open and unstarted any more, or its call is gone, so it is not to be run. While
// Postgres is away it tries again for as long as they may be started.
func (w *Worker) load(refs []handoff.Ref) (list []*attempt) {
	ctx, cancel := context.WithTimeout(w.handling, ledger.StartWithin)
	defer cancel()
	retry(ctx, 250*time.Millisecond, func() (err error) {
		if list, err = w.loads.DoAll(ctx, refs); err != nil && w.draining() {
			cancel() // recovery hands them over again
		}
		return err
	}, func(err error) { w.log.WarnContext(ctx, "attempts not loaded", "attempts", len(refs), "err", err) })
	return list
}

// loadOnce loads attempts, as load does. One whose row cannot be read, or has too much call_data, is refused. One that is not found
// has ended, or a load balancer has had a standby answer that does not have it yet: so it is read where it can be written.
func (w *Worker) loadOnce(ctx context.Context, refs []handoff.Ref) ([]*attempt, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	list := make([]*attempt, len(refs))
	places := make([]int, len(refs))
	for i := range places {
		places[i] = i
	}
	err := ledger.Apart(places, func(some []int) error {
		n, err := w.read(ctx, loadSQL, refs, list, some)
		if err != nil || n == len(some) {
			return err
		}
		found, err := w.read(ctx, loadWritableSQL, refs, list, some)
		if found > n {
			w.lagged.Do(func() {
				w.log.WarnContext(ctx, "attempts read on a standby first: a load balancer sends reads there", "fix", "callq doctor")
			})
		}
		return err
	}, func(place int, err error) {
		list[place] = w.newAttempt(refs[place])
		list[place].refused = unreadable(err)
	})
	return list, err
}

// read reads those attempts of refs that are at these places, into the list, and returns how many it found.
func (w *Worker) read(ctx context.Context, sql string, refs []handoff.Ref, list []*attempt, places []int) (int, error) {
	ids, attempts := make([]int64, len(places)), make([]int32, len(places))
	for i, place := range places {
		ids[i], attempts[i] = refs[place].CallID, refs[place].Attempt
	}
	rows, _ := w.db.Query(ctx, sql, ids, attempts) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (nth int, err error) {
		a := w.newAttempt(handoff.Ref{})
		err = row.Scan(&nth, &a.callID, &a.number, &a.Epoch, &a.Queue, &a.Task, &a.Key, &a.Cost, &a.Data, &a.CreatedAt, &a.DueAt, &a.FailedCount,
			&a.Policy.MaxAttempts, &a.Policy.BackoffMin, &a.Policy.BackoffMax, &a.Timeout, &a.Limits, &a.Keys, &a.Costs, &a.Frees, &a.store, &a.storeMax)
		if a.Data == nil {
			a.refused = ledger.ErrTooLarge
		}
		if err == nil {
			list[places[nth-1]] = a
		}
		return nth, err
	})
	return len(found), err
}

const loadSQL = `
SELECT a.nth, o.call_id, o.attempt, o.epoch, o.queue, o.task, o.key, o.cost, data,
    ` + ledger.CreatedAtSQL + ` AS created_at, ` + ledger.DueAtSQL + ` AS due_at, q.failed_count,` + ledger.PolicySQL + `,
    ` + ledger.TimeoutSQL + ` AS timeout, o.limits, o.keys, o.costs,
    EXISTS (SELECT FROM callq.call_limits l WHERE l.name = ANY(o.limits) AND l.window_size = '0') AS frees,
    coalesce(r.store, '') AS store, coalesce(r.store_max, 65536) AS store_max
FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY AS a (call_id, attempt, nth)
JOIN callq.call_open o ON o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt
JOIN callq.call_effective q ON q.id BETWEEN o.call_id AND o.call_id AND q.attempts = o.attempt AND q.status = 'dispatched'
CROSS JOIN ` + ledger.MostSQL + `
CROSS JOIN LATERAL (SELECT ` + ledger.DataSQL + ` AS data OFFSET 0) d
LEFT JOIN callq.call_queues r ON r.name BETWEEN o.queue AND o.queue
WHERE o.started_at IS NULL
ORDER BY a.call_id`

// No load balancer sends what locks rows to a standby. An attempt that somebody removes now is of no use.
const loadWritableSQL = loadSQL + ` FOR KEY SHARE OF o SKIP LOCKED`

// begin runs the attempt in the slot that it was given. A custom handler gets its goroutine only when the start is
// answered: parked goroutines would cost a quarter of the worker's CPU.
func (a *attempt) begin() {
	a.begun = time.Now()
	switch {
	case a.refused != nil:
		a.end(a.unstarted(a.refused))
	case a.Task == HTTP && a.w.http.Load() != nil:
		go a.run(a.runHTTP)
	case a.w.handlers[a.Task] != nil && a.place != nil:
		go a.run(func(ctx context.Context) *ledger.Closing {
			answer, err := a.place.started()
			return a.runHandler(ctx, answer, err)
		})
	case a.w.handlers[a.Task] != nil:
		a.m0 = a.begun
		a.w.starts.Tell(a.w.recording, a.startRequest(), func(answer ledger.StartAnswer, err error) {
			go a.run(func(ctx context.Context) *ledger.Closing { return a.runHandler(ctx, answer, err) })
		})
	default:
		a.end(a.unsent(errNoHandler, a.Policy.BackoffMin))
	}
}

// handBack gives an unstarted attempt back when the worker drains.
func (a *attempt) handBack() {
	a.release()
	a.w.recorder.record(a.w.recording, *a.unsent(errDraining, 0), a.w.slots.attempts.Done)
}

// run takes the attempt to its end. One whose handler ends the goroutine (runtime.Goexit, as testing.T.FailNow does) is left to
// recovery, for which it is lost.
func (a *attempt) run(handle func(context.Context) *ledger.Closing) {
	ctx, end := a.w.running.begin(a.w.handling, a)
	defer end()
	var closing *ledger.Closing
	defer func() { a.end(closing) }()
	if closing = handle(ctx); closing != nil {
		asCancelled(ctx, closing)
	}
}

// end has the outcome recorded, and then frees the slot. Nil: there is nothing to record.
func (a *attempt) end(closing *ledger.Closing) {
	a.release() // a worker that cannot record holds its slot, not the message
	a.unpromise()
	last := a.place != nil && a.place.left(a, closing)
	free := func() {
		a.w.running.forget(a)
		<-a.w.slots.tokens
		a.w.slots.attempts.Done()
		if last { // of its run: the next may begin
			a.w.recorder.unforeseen()
		}
	}
	if closing == nil {
		free()
		return
	}
	closing.Turn = a.waited
	closing.Frees = closing.Frees || last
	a.w.recorder.record(a.w.recording, *closing, func() {
		a.w.metrics.ended(a, closing)
		free()
	})
}

// runHTTP runs the built-in task, which asks for the start itself once it has a connection.
func (a *attempt) runHTTP(ctx context.Context) *ledger.Closing {
	call := a.httpCall()
	s := a.w.http.Load().Run(ctx, call, a.Timeout, a.start)
	a.result = s.Result
	switch {
	case a.refused != nil:
		return a.unstarted(a.refused)
	case s.Wrote:
		since := s.Since(a.m0)
		a.code, a.took, a.host = s.Code, since.Ended-*since.Sent, s.Host
		a.w.remotes.note(a, s)
		closing := a.ending(a.verdict(s))
		if closing.Outcome == callqueue.OutcomeDone {
			closing.Error = clean(s.Note)
		}
		return a.sent(closing, since.Arrival(), new(int16(1)))
	case a.started:
		return a.unsent(s.Err, a.Policy.BackoffMin/10)
	case a.w.handling.Err() != nil:
		return a.unsent(s.Err, 0)
	}
	// No connection, or a call that cannot be made.
	if refusal, ok := errors.AsType[*httptask.RefusedError](s.Err); ok && a.w.anotherMay(ctx, a.Queue, call, refusal) {
		return a.unsent(fmt.Errorf("handed back for another worker: %w", s.Err), a.Policy.Backoff(int(a.number), rand.Int64N)/10)
	}
	return a.ending(s.Err)
}

// runHandler runs a custom handler between a durable start, which was answered so, and its end.
func (a *attempt) runHandler(ctx context.Context, answer ledger.StartAnswer, err error) *ledger.Closing {
	g, err := a.awaitUnits(ctx, answer, err)
	if err != nil {
		return a.unstarted(err)
	}
	handler := a.w.handlers[a.Task]
	if handler == nil {
		return a.unsent(errNoHandler, a.Policy.BackoffMin)
	}
	ctx, cancel := context.WithDeadlineCause(ctx, a.m0.Add(a.Timeout), fmt.Errorf("timed out after %s", a.Timeout))
	defer cancel()
	if ctx.Err() != nil { // frozen, or the start took as long: others may count on its end by now
		return a.unsent(context.Cause(ctx), a.Policy.BackoffMin)
	}
	http := a.httpCall()
	a.client = cmp.Or(a.w.client, a.w.http.Load()).NewClient(ctx, http, g, a.Timeout)
	call := &Call{
		ID: a.callID, Attempt: int(a.number), Queue: a.Queue, Task: a.Task, Key: a.Key, Cost: a.Cost, Data: a.Data,
		IdempotencyKey: http.IdempotencyKey, Client: a.client.HTTP,
		budgets: &budgets{
			Store: a.w.budgets, metrics: a.w.metrics, queue: a.Queue, key: a.Key, owner: a.promised(), released: a.w.recorder.unforeseen,
		},
	}
	return a.handled(ctx, a.guard(ctx, handler, call))
}

// httpCall is what a request is made from. Its idempotency key names the call by its database too, and by when it was
// inserted: ids are given out again after a TRUNCATE or a restore.
func (a *attempt) httpCall() *httptask.Call {
	key := "callq-" + a.w.database + "-" + strconv.FormatInt(a.CreatedAt.UnixMicro(), 36) + "-" + strconv.FormatInt(a.callID, 10)
	return &httptask.Call{ID: a.callID, Attempt: int(a.number), IdempotencyKey: key, Data: a.Data, Store: a.store, StoreMax: a.storeMax}
}

// guard turns a panic into an error. The stack goes to the log, never to the call.
func (a *attempt) guard(ctx context.Context, handler Handler, call *Call) (err error) {
	defer func() {
		a.result, a.settled = call.result, call.settled
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			a.w.log.ErrorContext(ctx, "handler panicked", "task", a.Task, "call", a.callID,
				"attempt", a.number, "err", err, "stack", string(debug.Stack()))
		}
	}()
	if err = handler(ctx, call); err != nil {
		_ = err.Error() // of a nil pointer it may panic, and does so here
	}
	return err
}

// handled is how an attempt ends whose handler ended so.
func (a *attempt) handled(ctx context.Context, err error) *ledger.Closing {
	if err != nil && ctx.Err() != nil && !outcome.Chosen(err) && !strings.Contains(err.Error(), context.Cause(ctx).Error()) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	var requests *int16 // nil: it did not use the call's client
	s := limit.Sending{Ended: time.Since(a.m0)}
	if seen := a.client.End(); seen.Wrote {
		requests, s, a.code, a.host = new(int16(1)), seen.Since(a.m0), seen.Code, a.client.Host()
	} else if seen.Used {
		requests = new(int16(0))
	}
	if outcome.IsNotSent(err) {
		switch {
		case s.Sent != nil: // the gate knows better
			err = fmt.Errorf("a request was sent through the call's Client, but the handler says: %s", err.Error())
		case httptask.Unsent(err):
			return a.unsent(err, a.Policy.BackoffMin/10)
		default:
			return a.unsent(err, a.Policy.BackoffMin)
		}
	}
	if refused, ok := errors.AsType[*outcome.RefusedError](err); ok {
		err = a.told(refused)
	}
	s.Own, s.GaveUp, a.took = true, err != nil, s.Ended
	return a.sent(a.ending(err), s.Arrival(), requests)
}
