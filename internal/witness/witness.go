// Package witness lets workers say after a failover whether the new server lacks anything that they were told was written.
//
// What a server that took over has of the former one's log is all of it up to some point. So a worker need not know all that it
// wrote: if the last is there, everything before it is, too. And nothing is sent but after a start that a worker was
// told of. If all workers that lived find their last starts and heartbeats, no request was sent that this server does not count.
package witness

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Row is what a worker's heartbeat has of it.
type Row struct {
	ID     string
	Pool   string
	Tasks  []string
	Labels []string
	Slots  int
	HTTP   *string // JSON; nil: it does not take http
}

// Witness is what a worker was told was written last. The zero value is that of a worker that begins. It is safe for concurrent use.
type Witness struct {
	mu          sync.Mutex
	epoch       string     // in which it last spoke; "": none
	heartbeatAt *time.Time // its last heartbeat that was written, by Postgres's clock
	starts      []start    // those that no later write is known to follow
	now         int64      // counts what is asked and answered
}

// start is one of the attempts that a statement started.
type start struct {
	callID    int64
	startedAt time.Time
	answered  int64
}

// Ask is called before a start is sent to Postgres. Started needs what it returns.
func (w *Witness) Ask() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now++
	return w.now
}

// Started notes the answers to a start that was asked for at asked. What one statement starts is there as a whole, or not at all.
func (w *Witness) Started(asked int64, answers []ledger.StartAnswer) {
	i := slices.IndexFunc(answers, func(a ledger.StartAnswer) bool { return a.Refused == nil })
	if i < 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.follows(asked)
	w.now++
	w.starts = append(w.starts, start{answers[i].CallID, answers[i].StartedAt, w.now})
}

// follows forgets what was answered before the write that was asked for at asked: where that is, so is this.
func (w *Witness) follows(asked int64) {
	w.starts = slices.DeleteFunc(w.starts, func(s start) bool { return s.answered < asked })
}

// Heartbeat writes a heartbeat. The first in an epoch gives the worker's word, if it lived before. It returns whether it did.
func (w *Witness) Heartbeat(ctx context.Context, db schema.DB, r Row) (spoke bool, err error) {
	asked := w.Ask()
	args := w.args(r)
	rows, _ := db.Query(ctx, heartbeatSQL, args) // CollectExactlyOneRow returns its error
	written, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[heartbeat])
	if errors.Is(err, pgx.ErrNoRows) { // this is another epoch
		rows, _ = db.Query(ctx, wordSQL, args)
		written, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[heartbeat])
		spoke = args["former"] != ""
	}
	if err != nil {
		return false, ledger.Wrap("write the worker's heartbeat", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.follows(asked)
	w.epoch, w.heartbeatAt = written.Epoch, &written.At
	return spoke, nil
}

// heartbeat is one that was written.
type heartbeat struct {
	Epoch string
	At    time.Time
}

func (w *Witness) args(r Row) pgx.NamedArgs {
	w.mu.Lock()
	defer w.mu.Unlock()
	return pgx.NamedArgs{
		"id": r.ID, "pool": r.Pool, "tasks": r.Tasks, "labels": append([]string{}, r.Labels...), "slots": r.Slots, "http": r.HTTP,
		"former": w.epoch, "heartbeat_at": w.heartbeatAt,
		"ids":     column(w.starts, func(s start) int64 { return s.callID }),
		"started": column(w.starts, func(s start) time.Time { return s.startedAt }),
	}
}

// column is one value of each start.
func column[T any](starts []start, of func(start) T) []T {
	values := make([]T, len(starts))
	for i, s := range starts {
		values[i] = of(s)
	}
	return values
}
