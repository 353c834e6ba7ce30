package tasks

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5/pgxpool"
)

// recorder writes the outcomes of attempts, many in a statement, and wakes dispatchers that may wait for what they free.
type recorder struct {
	closings   *ledger.Batch[ledger.Closing, error] // the answer is whether the row was free
	db         *pgxpool.Pool
	log        *slog.Logger
	nearlyFull func() bool // the worker's slots are
	wakes      chan struct{}
	unused     atomic.Bool // units among what came free were given back
}

func newRecorder(db *pgxpool.Pool, log *slog.Logger, nearlyFull func() bool) *recorder {
	r := &recorder{db: db, log: log, nearlyFull: nearlyFull, wakes: make(chan struct{}, 1)}
	r.closings = ledger.NewBatch(batchSize, func(c ledger.Closing) int { return len(c.Result) }, r.close)
	return r
}

func (r *recorder) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { r.closings.Run(ctx, lanes) })
	all.Go(func() { r.wakeDispatchers(ctx) })
	all.Wait()
}

// close answers of each closing whether its row is free.
func (r *recorder) close(ctx context.Context, closings []ledger.Closing) ([]error, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	_, err := ledger.Close(ctx, r.db, closings)
	if ledger.Busy(err) {
		return r.closeFree(ctx, closings)
	}
	if err != nil {
		return nil, err
	}
	r.freed(closings)
	return make([]error, len(closings)), nil
}

// closeFree closes those whose rows nobody else holds, and waits for none.
func (r *recorder) closeFree(ctx context.Context, closings []ledger.Closing) ([]error, error) {
	_, busy, err := ledger.CloseFree(ctx, r.db, closings)
	if err != nil {
		return nil, err
	}
	r.freed(closings)
	answers := make([]error, len(closings))
	for i, c := range closings {
		if slices.Contains(busy, c.CallID) {
			answers[i] = ledger.ErrBusy
		}
	}
	return answers, nil
}

// record writes an outcome, and tries until it is written: only then may the slot be used again.
// Closing twice is harmless, so an unknown result is simply tried again. One whose row errs, or is held by somebody's
// transaction, is tried apart from the others, which would wait with it.
func (r *recorder) record(ctx context.Context, c ledger.Closing, apart bool) {
	retry(ctx, 20*time.Millisecond, func() error {
		for {
			err := r.try(ctx, c, apart)
			apart = apart || errors.Is(err, ledger.ErrBusy) || ledger.Spoiled(err)
			switch {
			case ledger.BadData(err) && c.Result != nil:
				r.log.WarnContext(ctx, "result dropped", "call", c.CallID, "attempt", c.Attempt, "err", err)
				c.Result = nil // Postgres does not take it as jsonb; the outcome matters more
			case ledger.BadData(err) && c.Error != inASCII(c.Error):
				c.Error = inASCII(c.Error) // the database's encoding does not have it
			default:
				return err
			}
		}
	}, func(err error) {
		r.log.WarnContext(ctx, "outcome not recorded", "call", c.CallID, "attempt", c.Attempt, "err", err)
	})
}

func (r *recorder) try(ctx context.Context, c ledger.Closing, apart bool) error {
	if !apart {
		busy, err := r.closings.Do(ctx, c)
		return cmp.Or(err, busy)
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	answers, err := r.closeFree(ctx, []ledger.Closing{c})
	if err != nil {
		return err
	}
	return answers[0]
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

// freed has the dispatchers woken when what has closed frees units of a concurrency limit, gives
// back units that it never used, or not all, or frees slots of a worker that was nearly full: they may have held
// back calls for want of any.
func (r *recorder) freed(closings []ledger.Closing) {
	if slices.ContainsFunc(closings, func(c ledger.Closing) bool { return c.Arrival == nil || c.Saves }) {
		r.unused.Store(true)
		r.wake()
	} else if r.nearlyFull() || slices.ContainsFunc(closings, func(c ledger.Closing) bool { return c.Frees }) {
		r.wake()
	}
}

// wake has the dispatchers woken soon.
func (r *recorder) wake() {
	select {
	case r.wakes <- struct{}{}:
	default: // one is waiting, and will be told after this
	}
}

// wakeDispatchers wakes them when there is something to tell, at most every wakeEvery: a NOTIFY
// takes a lock that all commits of its kind share.
func (r *recorder) wakeDispatchers(ctx context.Context) {
	for {
		select {
		case <-r.wakes:
		case <-ctx.Done():
			return
		}
		what := ""
		if r.unused.Swap(false) { // of a window: else dispatchers know when the next comes free
			what = callqueue.WakeFreed
		}
		if _, err := r.db.Exec(ctx, wakeSQL, what); err != nil {
			r.log.DebugContext(ctx, "dispatchers not woken", "err", err) // their schedule will
		}
		if !pause(ctx, wakeEvery) {
			return
		}
	}
}

const wakeSQL = `SELECT pg_notify('` + callqueue.WakeChannel + `', $1)`

const wakeEvery = 5 * time.Millisecond
