package ledger

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// StartRequest asks to start an attempt, with a token that the worker draws once for it. To ask again with the same token is
// safe, and gives the first answer.
type StartRequest struct {
	CallID  int64
	Attempt int32
	Token   int64
	Epoch   string        // that it was loaded in, as after a failover its id may be another call's; "": it was not loaded
	Timeout time.Duration // how long the handler may take; 0: the queue's timeout, and the answer has the Work
	Wait    time.Duration // how long its units are not yet free
	Asked   time.Time     // monotonic, when Wait was as long; zero: when the statement is sent
}

// StartAnswer answers a StartRequest.
type StartAnswer struct {
	CallID     int64
	Token      int64
	Refused    error          // nil: it is started; else ErrBusy, ErrNotOpen, ErrGone, ErrExpired or ErrTooLarge, and the rest is zero
	StartedAt  time.Time      // Postgres's clock at the start
	After      time.Duration  // from Asked to when the statement was sent
	Wait       time.Duration  // from the statement to the start: what was left of what was asked for, or more; limit.AheadMost at most
	SendWithin *time.Duration // how long after the start the worker may write the request; nil: no limit bounds it
	Work       *Work          // nil: the request had a Timeout
}

// Why a start is refused, besides [ErrBusy].
var (
	// ErrNotOpen: the attempt has ended, is another token's, or is too late to start. This token never starts it: leave it alone.
	ErrNotOpen = errors.New("the attempt was not started")
	// ErrGone: the attempt is open, but its call does not wait for it any more. Close it unsent.
	ErrGone = errors.New("its call was deleted or cancelled")
	// ErrExpired: the attempt is open, but it is too late for its call. Close it unsent, and its call as failed.
	ErrExpired = errors.New("its call has expired")
	// ErrTooLarge: the attempt is open, but no worker may read its call. Close both as failed, for good.
	ErrTooLarge = errors.New("call_data has more bytes than calls.max_data allows")
)

// Work is what a handler needs of an attempt.
type Work struct {
	Opened
	Queue       string
	Key         string
	Data        []byte
	CreatedAt   time.Time // of the call
	DueAt       time.Time // since when it may be made
	FailedCount int
	Policy      Policy
	Timeout     time.Duration
	Frees       bool // its end frees a unit of a concurrency limit
}

// StartWithin is how long a claimed attempt may wait for its start, or until its queue's hours end, if that is sooner. Nothing
// starts after it: recovery closes the attempt unsent.
const StartWithin = 30 * time.Second

// Created_at and when it is due, of a call q, within what Go can read: one infinite time would spoil the statement.
const (
	CreatedAtSQL = `least(greatest(coalesce(q.created_at, 'epoch'), timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 23:59:59.999999Z')`
	DueAtSQL     = `least(greatest(coalesce(q.run_at, 'epoch'), timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 23:59:59.999999Z')`
)

// Start starts attempts, each by a compare-and-set on its open row, locked in id order. The starts are durable when it returns.
// Answers come in the requests' order. After an error it is unknown what has started: ask again with the same tokens. After
// an error that is [Busy] nothing has.
func Start(ctx context.Context, db DB, worker string, requests []StartRequest) ([]StartAnswer, error) {
	given, err := start(ctx, db, worker, requests)
	return inOrder(requests, given, nil), err
}

// StartFree is Start for attempts whose rows no other transaction has locked. It waits for none: it refuses the others with ErrBusy.
func StartFree(ctx context.Context, db schema.DB, worker string, requests []StartRequest) ([]StartAnswer, error) {
	id := func(r StartRequest) int64 { return r.CallID }
	var given []StartAnswer
	busy, err := onFree(ctx, db, false, requests, id, func(tx pgx.Tx, free []StartRequest) (err error) {
		given, err = start(ctx, tx, worker, free)
		return err
	})
	return inOrder(requests, given, busy), err
}

// asked is what a start was asked for. All attempts of a run have one token.
type asked struct{ callID, token int64 }

// start starts what can be started, and asks of the rest why not.
func start(ctx context.Context, db DB, worker string, requests []StartRequest) ([]StartAnswer, error) {
	requests, after, now := slices.Clone(requests), make(map[asked]time.Duration, len(requests)), time.Now()
	for i := range requests {
		if r := &requests[i]; !r.Asked.IsZero() { // some of its wait has passed
			since := now.Sub(r.Asked)
			after[asked{r.CallID, r.Token}], r.Wait = since, max(0, r.Wait-since).Truncate(time.Microsecond)
		}
	}
	rows, _ := db.Query(ctx, startSQL, startArgs(worker, requests)) // CollectRows returns its error
	given, err := pgx.CollectRows(rows, scanAnswer)
	for i := range given {
		if given[i].After = after[asked{given[i].CallID, given[i].Token}]; given[i].Wait < 0 { // an earlier statement started it
			given[i].After, given[i].Wait = 0, 0
		}
	}
	if err != nil || len(given) == len(requests) {
		return given, Wrap("start attempts", err)
	}
	rest := slices.DeleteFunc(slices.Clone(requests), func(r StartRequest) bool {
		return slices.ContainsFunc(given, func(a StartAnswer) bool { return a.CallID == r.CallID && a.Token == r.Token })
	})
	rows, _ = db.Query(ctx, refusedSQL, startArgs(worker, rest))
	refused, err := pgx.CollectRows(rows, scanRefused)
	return append(given, refused...), Wrap("ask why attempts are not started", err)
}

func startArgs(worker string, requests []StartRequest) pgx.NamedArgs {
	return pgx.NamedArgs{
		"worker":   worker,
		"ids":      column(requests, func(r StartRequest) int64 { return r.CallID }),
		"attempts": column(requests, func(r StartRequest) int32 { return r.Attempt }),
		"tokens":   column(requests, func(r StartRequest) int64 { return r.Token }),
		"epochs":   column(requests, func(r StartRequest) string { return r.Epoch }),
		"timeouts": sparse(requests, func(r StartRequest) *time.Duration { return up(nonZero(r.Timeout)) }),
		"waits":    sparse(requests, func(r StartRequest) *time.Duration { return up(nonZero(r.Wait)) }),
		"most":     limit.AheadMost,
	}
}

// scanAnswer scans its fields one by one, since reflection would take a microsecond for each row.
func scanAnswer(row pgx.CollectableRow) (a StartAnswer, err error) {
	var loaded bool
	w := new(Work)
	err = row.Scan(&a.CallID, &a.Token, &a.StartedAt, &a.SendWithin, &loaded,
		&w.Epoch, &w.Queue, &w.Task, &w.Key, &w.Cost, &w.Data, &w.CreatedAt, &w.DueAt, &w.FailedCount,
		&w.Policy.MaxAttempts, &w.Policy.BackoffMin, &w.Policy.BackoffMax, &w.Timeout, &w.Limits, &w.Keys, &w.Costs, &w.Frees, &a.Wait)
	if loaded {
		a.Work = w
	}
	return a, err
}

func scanRefused(row pgx.CollectableRow) (a StartAnswer, err error) {
	var gone, expired, tooLarge bool
	err = row.Scan(&a.CallID, &a.Token, &gone, &expired, &tooLarge)
	switch {
	case gone:
		a.Refused = ErrGone
	case expired:
		a.Refused = ErrExpired
	case tooLarge:
		a.Refused = ErrTooLarge
	default:
		a.Refused = ErrNotOpen
	}
	return a, err
}

// inOrder is the answers in the requests' order. An attempt without one is busy, or not open.
func inOrder(requests []StartRequest, given []StartAnswer, busy []int64) []StartAnswer {
	byAsked := make(map[asked]int, len(given))
	for i, a := range given {
		byAsked[asked{a.CallID, a.Token}] = i
	}
	answers := make([]StartAnswer, len(requests))
	for i, r := range requests {
		answers[i] = StartAnswer{CallID: r.CallID, Token: r.Token, Refused: ErrNotOpen}
		if k, ok := byAsked[asked{r.CallID, r.Token}]; ok {
			answers[i] = given[k]
		} else if slices.Contains(busy, r.CallID) {
			answers[i].Refused = ErrBusy
		}
	}
	return answers
}

// startSQL locks the open rows in id order, in which asked finds them. asked carries what the rest needs: to join two lists of a
// batch's size is quadratic under [Settings].
//
// The conditions stand on call_open's own columns, because Postgres checks only those again after it waits for a lock. A row
// with the token keeps its first started_at and deadline. One of a run has its token before (Reserve). If a batch asks for an attempt with two tokens, the one that the
// row took counts.
//
// The clock is read after the worker has read its own, on which its bounds rest. What was claimed ahead starts when its units are
// free, for which its wait stands whatever becomes of the clock. A start is never earlier than its claim, even if the clock was set
// back in between: then the worker waits for no longer than a claim may be ahead. The commit waits for the disk, whatever the
// server or the pool is set to.
const startSQL = `
WITH asked AS MATERIALIZED (
    SELECT a.*, clock_timestamp() AS now, coalesce(a.timeout, ` + TimeoutSQL + `) AS within,
        q.id IS NULL OR q.expires_at <= clock_timestamp() IS TRUE AS refused,
        CASE WHEN a.timeout IS NULL THEN ` + DataSQL + ` ELSE '' END AS data, ` + CreatedAtSQL + ` AS created_at, ` + DueAtSQL + ` AS due_at, q.failed_count,` + PolicySQL + `
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @epochs::text[], @timeouts::interval[], @waits::interval[])
        AS a (call_id, attempt, token, epoch, timeout, wait)
    CROSS JOIN ` + MostSQL + `
    LEFT JOIN callq.call_effective q ON q.id BETWEEN a.call_id AND a.call_id AND q.attempts = a.attempt AND q.status = 'dispatched'
    LEFT JOIN callq.call_queues r ON r.name BETWEEN q.queue AND q.queue
    ORDER BY a.call_id
)
UPDATE callq.call_open o
SET token      = a.token,
    worker     = @worker,
    started_at = coalesce(o.started_at, greatest(a.now + coalesce(a.wait, '0'), o.claimed_at)),
    deadline   = coalesce(o.deadline, greatest(a.now + coalesce(a.wait, '0'), o.claimed_at) + interval '1 second' + a.within)
FROM asked a
WHERE o.call_id BETWEEN a.call_id AND a.call_id AND NOT a.refused AND a.data IS NOT NULL
  AND o.attempt = a.attempt
  AND o.epoch = (SELECT callq.epoch()) AND a.epoch IN ('', o.epoch)
  AND (SELECT set_config('synchronous_commit', 'on', true)) = 'on'
  AND (SELECT set_config('lock_timeout', '100ms', true)) = '100ms'
  AND (o.token = a.token AND (o.started_at IS NOT NULL OR o.start_by > clock_timestamp() + coalesce(a.wait, '0'))
       OR o.token IS NULL AND o.rooms IS NULL AND o.start_by > clock_timestamp() + coalesce(a.wait, '0'))
RETURNING o.call_id, o.token, o.started_at, o.send_within, a.timeout IS NULL AS loaded, o.epoch, o.queue, o.task, o.key, o.cost,
    a.data, a.created_at, a.due_at, a.failed_count, a.max_attempts, a.backoff_min, a.backoff_max,
    o.deadline - o.started_at - interval '1 second' AS timeout, o.limits, o.keys, o.costs,
    o.limits <> '{}' AND EXISTS (SELECT FROM callq.call_limits l WHERE l.name = ANY(o.limits) AND l.window_size = '0') AS frees,
    least(o.started_at - a.now, @most::interval) AS wait`

// refusedSQL returns, of open attempts that were asked for, what is wrong with their calls.
const refusedSQL = `
SELECT a.call_id, a.token, q.id IS NULL AS gone, q.expires_at <= clock_timestamp() IS TRUE AS expired,
    CASE WHEN a.timeout IS NULL THEN ` + DataSQL + ` ELSE '' END IS NULL AS too_large
FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @epochs::text[], @timeouts::interval[], @waits::interval[])
    AS a (call_id, attempt, token, epoch, timeout, wait)
CROSS JOIN ` + MostSQL + `
LEFT JOIN public.call_queue q ON q.id BETWEEN a.call_id AND a.call_id AND q.attempts = a.attempt AND q.status = 'dispatched'
WHERE EXISTS (SELECT FROM callq.call_open o WHERE o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt OFFSET 0)`

// Running is an open attempt that this worker's token started.
type Running struct {
	CallID  int64
	Attempt int32
	Token   int64
	// For Acknowledge, from the reading before the start was asked for; nil: not known.
	Acked     *time.Duration // its request was acknowledged
	Overtaken *time.Duration // it, or a request that was written to the same host after that, was answered
}

// KeepOpen extends the deadlines after which recovery finds attempts lost to 30 s from now. It returns the calls whose
// attempts are open, but for those that somebody has locked: it waits for none.
func KeepOpen(ctx context.Context, db DB, attempts []Running) ([]int64, error) {
	kept, err := updateRunning(ctx, db, keepOpenSQL, attempts)
	return kept, Wrap("keep attempts open", err)
}

// Acknowledge stores when the requests of open attempts were acknowledged or had been read, so that their units come free
// before the attempts end. It does not wait for locks: a transaction that holds one closes the attempt.
func Acknowledge(ctx context.Context, db DB, attempts []Running) error {
	_, err := updateRunning(ctx, db, acknowledgeSQL, attempts)
	return Wrap("acknowledge requests", err)
}

func updateRunning(ctx context.Context, db DB, sql string, attempts []Running) ([]int64, error) {
	return queryIDs(ctx, db, sql, pgx.StrictNamedArgs{
		"ids":       column(attempts, func(a Running) int64 { return a.CallID }),
		"attempts":  column(attempts, func(a Running) int32 { return a.Attempt }),
		"tokens":    column(attempts, func(a Running) int64 { return a.Token }),
		"acked":     sparse(attempts, func(a Running) *time.Duration { return up(a.Acked) }),
		"overtaken": sparse(attempts, func(a Running) *time.Duration { return up(a.Overtaken) }),
	})
}

const (
	keepOpenSQL = runningSQL + `
UPDATE callq.call_open o SET deadline = greatest(o.deadline, clock_timestamp() + interval '30 seconds')
FROM free f WHERE o.call_id BETWEEN f.call_id AND f.call_id
RETURNING o.call_id`

	acknowledgeSQL = runningSQL + `
UPDATE callq.call_open o
SET acked_at = coalesce(o.started_at + f.acked, o.acked_at), overtaken_at = coalesce(o.started_at + f.overtaken, o.overtaken_at)
FROM free f WHERE o.call_id BETWEEN f.call_id AND f.call_id`

	// runningSQL locks those of the attempts that are open and free, in id order, as closeSQL does.
	runningSQL = `
WITH asked AS MATERIALIZED (
    SELECT *
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @acked::interval[], @overtaken::interval[])
        AS a (call_id, attempt, token, acked, overtaken)
    ORDER BY call_id
), free AS MATERIALIZED (
    SELECT o.call_id, a.acked, a.overtaken
    FROM asked a JOIN callq.call_open o ON o.call_id BETWEEN a.call_id AND a.call_id AND o.attempt = a.attempt AND o.token = a.token
    FOR NO KEY UPDATE OF o SKIP LOCKED
)`
)
