package dispatcher

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// aside are the calls that sweepers leave alone, until when (monotonic): their rows err, so that whatever statement
// they are in does. Guarded by the dispatcher's turn.
type aside map[int64]time.Time

const asideFor = time.Minute

// now are those that are aside.
func (a aside) now(now time.Time) []int64 {
	maps.DeleteFunc(a, func(_ int64, until time.Time) bool { return until.Before(now) })
	return slices.AppendSeq(make([]int64, 0, len(a)), maps.Keys(a))
}

// putAside has a call left alone for a while, and says why: in the log, and in its row, where that takes it.
func (d *Dispatcher) putAside(ctx context.Context, id int64, err error) {
	d.aside[id] = d.cfg.Now().Add(asideFor)
	d.log.ErrorContext(ctx, "call set aside: a sweep that has it errs", "call", id, "err", err)
	if _, err := d.cfg.Pool.Exec(ctx, asideSQL, id, AsideMessage+reason(err)); err != nil {
		d.log.WarnContext(ctx, "call not marked", "call", id, "err", err)
	}
}

// AsideMessage begins the error_message of a call that a sweeper cannot end.
const AsideMessage = "callq cannot end it: "

const asideSQL = `
UPDATE call_queue SET error_message = $2
WHERE id = (SELECT id FROM call_queue WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED) AND status IN ('new', 'error', 'dispatched')`

// close ends attempts. One that errs is put aside; one whose row somebody holds is left to the next sweep. While there
// are such, no sweep waits for them.
func (d *Dispatcher) close(ctx context.Context, rows []overdue, closing func(overdue) ledger.Closing) (int, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	closings := make([]ledger.Closing, len(rows))
	for i, o := range rows {
		closings[i] = closing(o)
	}
	n := 0
	err := ledger.Apart(closings, func(some []ledger.Closing) error {
		closed, err := d.closeFree(ctx, some)
		n += len(closed)
		return err
	}, func(c ledger.Closing, err error) { d.putAside(ctx, c.CallID, err) })
	return n, err
}

func (d *Dispatcher) closeFree(ctx context.Context, closings []ledger.Closing) ([]int64, error) {
	known := d.cfg.Now().Before(d.busyUntil)
	if !known {
		closed, err := ledger.Close(ctx, d.cfg.Pool, closings)
		if !ledger.Busy(err) {
			return closed, err
		}
	}
	closed, busy, err := ledger.CloseFree(ctx, d.cfg.Pool, closings)
	if len(busy) == 0 {
		return closed, err
	}
	if !known {
		d.log.WarnContext(ctx, "attempts wait for rows that other transactions hold; callq doctor names those", "calls", busy)
	}
	d.busyUntil = d.cfg.Now().Add(asideFor)
	for _, id := range busy {
		d.aside[id] = d.cfg.Now().Add(time.Second)
	}
	return closed, err
}
