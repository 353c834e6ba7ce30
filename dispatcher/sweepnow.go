package dispatcher

import (
	"context"
	"fmt"

	"github.com/callq/callq/internal/lines"
)

// Swept is what a sweep did of one kind of thing, or would do.
type Swept struct {
	What  string `json:"what"`
	Count int64  `json:"count"`
}

const (
	sweptCalls = "waiting calls that were in no line"
	sweptLines = "lines that do not add up"
)

// SweepAll runs every sweeper until it finds nothing more, and mends lines, which no tick does: for that
// all calls are looked through. It claims nothing and publishes nothing, and needs no process beside it.
func (d *Dispatcher) SweepAll(ctx context.Context) ([]Swept, error) {
	d.turn.Lock()
	defer d.turn.Unlock()
	_, epoch, err := d.readClock(ctx, d.cfg.Pool) // as a tick begins
	if err != nil {
		return nil, err
	}
	if err := d.noteEpoch(ctx, epoch); err != nil {
		return nil, err
	}
	var swept []Swept
	for _, s := range d.sweepers() {
		done := Swept{What: s.what}
		for n := sweepMost; n >= sweepMost; {
			if n, err = s.run(ctx); err != nil {
				return swept, fmt.Errorf("sweep %s: %w", s.what, err)
			}
			done.Count += int64(n)
		}
		if s.count != nil {
			swept = append(swept, done)
		}
	}
	mended, err := lines.Mend(ctx, d.cfg.Pool)
	return append(swept, Swept{sweptLines, mended.Lines}, Swept{sweptCalls, mended.Calls}), err
}

// FindAll is what SweepAll would find, and changes nothing. Of calls in lines that do not add up it cannot
// say how many are in no other; of limits it counts those that are shut, though some may have to stay so.
func (d *Dispatcher) FindAll(ctx context.Context) ([]Swept, error) {
	d.turn.Lock()
	defer d.turn.Unlock()
	var found []Swept
	for _, s := range d.sweepers() {
		if s.count == nil {
			continue
		}
		n, err := s.count(ctx)
		if err != nil {
			return found, fmt.Errorf("look for %s: %w", s.what, err)
		}
		found = append(found, Swept{s.what, n})
	}
	astray, err := lines.FindAstray(ctx, d.cfg.Pool, 0)
	return append(found, Swept{sweptLines, astray.Lines}, Swept{sweptCalls, astray.Calls}), err
}

func (d *Dispatcher) counting(sql string) func(context.Context) (int64, error) {
	return func(ctx context.Context) (n int64, err error) {
		return n, d.cfg.Pool.QueryRow(ctx, sql).Scan(&n)
	}
}

// overdueCountSQL completes a WHERE over call_open o, as overdueSQL does.
const overdueCountSQL = `SELECT count(*) FROM call_open o WHERE `

const expiredCountSQL = `
SELECT count(*) FROM call_queue WHERE expires_at <= (SELECT clock_timestamp()) AND status IN ('new', 'error')`

const shutCountSQL = `SELECT count(*) FROM (` + shutLimitsSQL + `) l`

func (d *Dispatcher) countUnsent(ctx context.Context) (n int64, err error) {
	late, err := d.unsent(ctx)
	for _, u := range late {
		n += int64(len(u.CallIDs))
	}
	return n, err
}
