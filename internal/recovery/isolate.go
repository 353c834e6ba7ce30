package recovery

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// isolated are the calls that recovery leaves alone, and until when: any statement they are in errs.
type isolated map[int64]time.Time

const isolateFor = time.Minute

// at returns the calls that are isolated at a time.
func (a isolated) at(now time.Time) []int64 {
	maps.DeleteFunc(a, func(_ int64, until time.Time) bool { return until.Before(now) })
	return slices.AppendSeq(make([]int64, 0, len(a)), maps.Keys(a))
}

// isolate leaves a call alone for a while. It says why in the log and, if it can be written, in the row.
func (r *Recoverer) isolate(ctx context.Context, id int64, err error) {
	r.isolated[id] = r.Now().Add(isolateFor)
	r.Log.ErrorContext(ctx, "call isolated", "call", id, "err", err)
	if _, err := r.Pool.Exec(ctx, isolateSQL, id, IsolatedMessage+ledger.Reason(err)); err != nil {
		r.Log.WarnContext(ctx, "isolated call not marked", "call", id, "err", err)
	}
}

// IsolatedMessage begins the error_message of a call that recovery cannot end.
const IsolatedMessage = "callq cannot end it: "

const isolateSQL = `
UPDATE call_queue SET error_message = $2
WHERE id = (SELECT id FROM call_queue WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED) AND status IN ('new', 'error', 'dispatched')`

// close closes attempts. One that errs is isolated. One whose row another transaction holds is left to the next pass; while
// there are such, no pass waits for them.
func (r *Recoverer) close(ctx context.Context, rows []overdue, closing func(overdue) ledger.Closing) (int, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	closings := make([]ledger.Closing, len(rows))
	for i, o := range rows {
		closings[i] = closing(o)
	}
	n := 0
	err := ledger.Apart(closings, func(some []ledger.Closing) error {
		closed, err := r.closeFree(ctx, some)
		n += len(closed)
		return err
	}, func(c ledger.Closing, err error) { r.isolate(ctx, c.CallID, err) })
	return n, err
}

func (r *Recoverer) closeFree(ctx context.Context, closings []ledger.Closing) ([]int64, error) {
	known := r.Now().Before(r.busyUntil)
	if !known {
		closed, err := ledger.Close(ctx, r.Pool, closings)
		if !ledger.Busy(err) {
			return closed, err
		}
	}
	closed, busy, err := ledger.CloseFree(ctx, r.Pool, closings)
	if len(busy) == 0 {
		return closed, err
	}
	if !known {
		r.Log.WarnContext(ctx, "attempts wait for rows that other transactions hold; callq doctor names those", "calls", busy)
	}
	r.busyUntil = r.Now().Add(isolateFor)
	for _, id := range busy {
		r.isolated[id] = r.Now().Add(time.Second)
	}
	return closed, err
}
