package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Closing ends an attempt.
type Closing struct {
	CallID    int64
	Attempt   int32
	Token     int64   // that started it; 0: none has
	Unstarted bool    // close it also if it has not started
	Opened    *Opened // nil: the close reads it first

	Outcome  callqueue.Outcome
	Error    string          // why it failed, or what is wrong with the answer of one that is done; a failure is the call's error_message, too
	Result   json.RawMessage // nil: none
	Requests *int16          // requests that the write gate let through; nil: not seen
	Code     int             // the HTTP status that came back; 0: none
	Took     time.Duration   // how long that took, or for how long the handler ran; 0: unknown
	Settled  *int64          // the cost that the handler reported, which limits that count cost charge; nil: the claimed cost
	// Arrival bounds when the request reached the API, as offsets from the start, or from the claim if no start is recorded.
	// Nil: it was provably never sent, so nothing is charged.
	Arrival *limit.Arrival
	Host    string        // where the request was sent to; "": unknown
	Turn    time.Duration // from the start to when one of a run might be sent

	// What becomes of the call, unless it has moved on.
	Status callqueue.Status
	Failed bool           // counts in failed_count
	Delay  *time.Duration // until it may be claimed again; nil: run_at stays as it is

	Frees bool // for the caller, who wakes dispatchers that may wait for its end

	acked     *time.Duration // when the request was acknowledged, by the row, from the start
	overtaken *time.Duration // likewise, that it had been read
	former    bool           // the row is of a former epoch
}

// Closer closes attempts. It remembers the limits' rules, so a close of attempts whose [Opened] is known takes one statement. The
// zero Closer is ready. Many goroutines may use one.
type Closer struct {
	rules atomic.Pointer[map[string]rule] // never changed, only replaced
}

// Close ends attempts: one statement removes each open row, writes its ledger row, charges its limits and moves its call on.
// It returns the ids of those it closed; the others were closed before, or have another token. After an error it is unknown
// which are closed; closing again is safe.
//
// The statement leaves attempts alone that are not as the closings say. If it would charge others without them, or a limit is not
// as it was, it does nothing. Then, as where not all is known, Close locks and reads the rows that may be left, and closes them.
func (c *Closer) Close(ctx context.Context, db Beginner, closings []Closing) (closed []int64, err error) {
	unread := func(c Closing) bool { return c.Opened == nil || c.Arrival != nil && c.Opened.From.IsZero() }
	if rules := c.rules.Load(); rules != nil && !slices.ContainsFunc(closings, unread) {
		closed, err = c.close(ctx, db, closings, *rules, lockWait)
		if err != nil && !hasCode(err, "40001") || len(closed) == len(closings) { // serialization_failure
			return closed, err
		}
		closings = slices.DeleteFunc(slices.Clone(closings), func(c Closing) bool { return slices.Contains(closed, c.CallID) })
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		more, err := c.close(ctx, tx, closings, nil, lockWait)
		closed = append(closed, more...)
		return err
	})
	return closed, err
}

// CloseFree is Close for attempts whose rows no other transaction has locked. It waits for none; busy is the ids of the calls
// that it skipped.
func CloseFree(ctx context.Context, db schema.DB, closings []Closing) (closed, busy []int64, err error) {
	id := func(c Closing) int64 { return c.CallID }
	busy, err = onFree(ctx, db, true, closings, id, func(tx pgx.Tx, free []Closing) (err error) {
		closed, err = new(Closer).close(ctx, tx, free, nil, lockWait)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return closed, busy, nil
}

// GoByAcks reports whether one of the limits takes an acknowledgement for an arrival, or that is not known.
func (c *Closer) GoByAcks(limits []string) bool {
	rules := c.rules.Load()
	return rules == nil || slices.ContainsFunc(limits, func(name string) bool { return (*rules)[name].Proof != limit.ProofLater })
}

// Warm reads the rules, and has Postgres plan what Close needs.
func (c *Closer) Warm(ctx context.Context, db Beginner) error {
	if _, err := c.Close(ctx, db, []Closing{{}}); err != nil {
		return err
	}
	for _, charges := range []bool{false, true} {
		if _, err := queryIDs(ctx, db, closeSQL(charges, false), closeArgs(nil, new(bill), lockWait)); err != nil {
			return Wrap("plan closes", err)
		}
	}
	return nil
}

// lockWait is how long a close waits for each lock, as the whole batch waits with it.
const lockWait = "100ms"

// close closes attempts by the rules, in one statement. Without rules it needs a transaction: it first locks and reads the open
// rows, and reads the rules. It waits so long for each lock; "0": for ever.
func (c *Closer) close(ctx context.Context, db DB, closings []Closing, rules map[string]rule, wait string) (closed []int64, err error) {
	closings = inIDOrder(closings)
	reads := rules == nil
	if reads {
		if closings, err = lockOpen(ctx, db, closings, wait); err != nil {
			return nil, Wrap("lock attempts to close", err)
		}
	}
	for range 5 { // a limit may change before the statement sees it, or a few
		if reads {
			if rules, err = c.readRules(ctx, db); err != nil || len(closings) == 0 {
				return nil, Wrap("read the limits", err)
			}
		}
		b, err := newBill(closings, rules)
		if err != nil {
			return nil, fmt.Errorf("charge attempts: %w", err)
		}
		closed, err := queryIDs(ctx, db, closeSQL(b.charged(), len(b.freed) > 0), closeArgs(closings, b, wait))
		if !reads || err != nil || len(closed) > 0 {
			return closed, Wrap("close attempts", err)
		}
	}
	return nil, errors.New("close attempts: their limits change all the time")
}

// lockOpen locks the rows that closings end, and returns these closings, with what the rows hold. It sets attempts of former calls
// aside.
func lockOpen(ctx context.Context, db DB, closings []Closing, wait string) (open []Closing, err error) {
	var batch pgx.Batch
	batch.Queue(lockOpenSQL, openArgs(closings, wait)).Query(func(rows pgx.Rows) error {
		read, err := pgx.CollectRows(rows, pgx.RowToStructByName[opened])
		for _, o := range read {
			c := closings[o.Nth-1]
			if n := len(open); n > 0 && open[n-1].CallID == c.CallID {
				continue // it was asked for twice
			}
			c.Opened, c.acked, c.overtaken, c.former = &o.Opened, o.Acked, o.Overtaken, o.Former
			open = append(open, c)
		}
		return err
	})
	batch.Queue(setAsideSQL, column(closings, func(c Closing) int64 { return c.CallID }))
	return open, db.SendBatch(ctx, &batch).Close()
}

// readRules also has the next closes go by them.
func (c *Closer) readRules(ctx context.Context, db DB) (map[string]rule, error) {
	rows, _ := db.Query(ctx, rulesSQL) // CollectRows returns its error
	read, err := pgx.CollectRows(rows, pgx.RowToStructByPos[rule])
	rules := make(map[string]rule, len(read))
	for _, r := range read {
		rules[r.Name] = r
	}
	if err == nil {
		c.rules.Store(&rules)
	}
	return rules, err
}

func inIDOrder(closings []Closing) []Closing {
	return slices.SortedFunc(slices.Values(closings), func(a, b Closing) int { return cmp.Compare(a.CallID, b.CallID) })
}

// openArgs are the arguments that say which open rows the closings end.
func openArgs(closings []Closing, wait string) pgx.NamedArgs {
	return pgx.NamedArgs{
		"wait":      wait,
		"ids":       column(closings, func(c Closing) int64 { return c.CallID }),
		"attempts":  column(closings, func(c Closing) int32 { return c.Attempt }),
		"tokens":    column(closings, func(c Closing) *int64 { return nonZero(c.Token) }),
		"unstarted": sparse(closings, func(c Closing) *bool { return nonZero(c.Unstarted) }),
		"charged":   column(closings, func(c Closing) bool { return c.Arrival != nil }),
	}
}

// closeArgs are the arguments of closeSQL.
func closeArgs(closings []Closing, b *bill, wait string) pgx.NamedArgs {
	args := openArgs(closings, wait)
	b.args(args)
	maps.Copy(args, pgx.NamedArgs{
		"outcomes":  column(closings, func(c Closing) string { return string(c.Outcome) }),
		"errors":    sparse(closings, func(c Closing) *string { return nonZero(c.Error) }),
		"results":   sparse(closings, func(c Closing) *string { return nonZero(string(c.Result)) }),
		"requests":  sparse(closings, func(c Closing) *int16 { return c.Requests }),
		"codes":     sparse(closings, func(c Closing) *int { return nonZero(c.Code) }),
		"took":      sparse(closings, func(c Closing) *int64 { return nonZero(min(c.Took.Milliseconds(), math.MaxInt32)) }),
		"settled":   sparse(closings, Closing.settled),
		"acked":     sparse(closings, Closing.ackedAt),
		"overtaken": sparse(closings, Closing.overtakenAt),
		"hosts":     sparse(closings, func(c Closing) *string { return nonZero(c.host()) }),
		"sent_by":   sparse(closings, Closing.sentBy),
		"epochs":    column(closings, func(c Closing) string { return c.Opened.Epoch }),
		"statuses":  column(closings, func(c Closing) string { return string(c.Status) }),
		"failed":    sparse(closings, func(c Closing) *bool { return nonZero(c.Failed) }),
		"delay":     sparse(closings, func(c Closing) *time.Duration { return up(c.Delay) }),
		"turns":     sparse(closings, func(c Closing) *time.Duration { return nonZero(c.Turn.Truncate(time.Microsecond)) }),
	})
	return args
}

// ackedAt is when the charges say that the request was acknowledged.
func (c Closing) ackedAt() *time.Time {
	if c.Arrival == nil || c.bounded().Acked == nil {
		return nil
	}
	return new(c.at(*c.bounded().Acked))
}

// overtakenAt is when the charges say that the request had been read.
func (c Closing) overtakenAt() *time.Time {
	if c.Arrival == nil || c.bounded().Later == nil {
		return nil
	}
	return new(c.at(*c.bounded().Later))
}

// host is where an attempt was sent to that had no answer.
func (c Closing) host() string {
	if c.Arrival == nil || c.Arrival.SentBy == nil {
		return ""
	}
	return c.Host
}

// sentBy is by when TCP had brought such a request there.
func (c Closing) sentBy() *time.Time {
	if c.host() == "" {
		return nil
	}
	return new(c.at(*c.Arrival.SentBy))
}

// settled is what a charge goes by.
func (c Closing) settled() *int64 {
	if c.Arrival == nil {
		return nil
	}
	return c.Settled
}

// setAsideSQL makes way in the ledger for attempts whose call's id was used before: call_queue was truncated, or the call was
// deleted and inserted again. It numbers the attempts of former calls from 0 down. They stay charged.
const setAsideSQL = `
WITH former AS (
    SELECT a.call_id, a.attempt, least((SELECT min(attempt) FROM public.call_attempts WHERE call_id = a.call_id), 1)
        - row_number() OVER (PARTITION BY a.call_id ORDER BY a.attempt DESC) AS becomes
    FROM callq.call_open o JOIN public.call_attempts a ON a.call_id = ANY (ARRAY[o.call_id]) AND a.attempt >= o.attempt
    WHERE o.call_id = ANY($1::bigint[])
)
UPDATE public.call_attempts a SET attempt = f.becomes FROM former f WHERE a.call_id = ANY (ARRAY[f.call_id]) AND a.attempt = f.attempt
RETURNING a.call_id`

// Policy is how a queue retries.
type Policy struct {
	MaxAttempts int           // bounds failed_count
	BackoffMin  time.Duration // delay after the first failure; doubles with each
	BackoffMax  time.Duration // the longest delay
}

// How a call q is retried, in SQL, by its queue's row r. Either may be missing: a queue that has left the configuration has
// the defaults.
const (
	PolicySQL = `
    coalesce(q.max_attempts, r.max_attempts, 3) AS max_attempts,
    coalesce(r.backoff_min, '10 seconds') AS backoff_min,
    coalesce(r.backoff_max, '15 minutes') AS backoff_max`
	TimeoutSQL = `coalesce(r.timeout, interval '30 seconds')`
	OnLostSQL  = `coalesce(r.on_lost, 'retry')`
)

// Next is a call's status after a failure that may be retried, and for StatusError the delay. failedCount includes that
// failure. random draws from [0, n).
func (p Policy) Next(failedCount int, random func(n int64) int64) (callqueue.Status, time.Duration) {
	if failedCount >= p.MaxAttempts {
		return callqueue.StatusFailed, 0
	}
	return callqueue.StatusError, p.Backoff(failedCount, random)
}

// Backoff is the delay after the n-th failure. It grows from BackoffMin to BackoffMax, with equal jitter (half fixed, half
// random), so that calls that failed together do not return together. Source: M. Brooker, "Exponential Backoff And Jitter",
// AWS Architecture Blog, 2015.
func (p Policy) Backoff(n int, random func(n int64) int64) time.Duration {
	delay, shift := p.BackoffMax, min(max(n-1, 0), 40)
	if p.BackoffMin < p.BackoffMax>>shift {
		delay = p.BackoffMin << shift
	}
	half := delay / 2
	return half + time.Duration(random(int64(half)+1))
}
