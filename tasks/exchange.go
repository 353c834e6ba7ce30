package tasks

import (
	"context"

	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
)

const exchangeEvery = outliveEvery * 2

// exchange tells other workers, and recovery, which requests to hosts in doubt were answered, and hears what they saw: requests
// that were acknowledged before another was written have been read when that one is answered. While nothing is in doubt it
// reads an empty table.
func (w *Worker) exchange(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	known, err := ledger.AnsweredHosts(ctx, w.db)
	if err != nil {
		return err
	}
	list := make([]httptask.Answered, len(known))
	for i, k := range known {
		list[i] = httptask.Answered(k)
	}
	w.arrivals.Tell(list)
	newer := w.arrivals.Newest(list)
	doubtful := w.arrivals.Doubtful()
	if len(newer) == 0 && len(doubtful) == 0 {
		return nil
	}
	tell := make([]ledger.Answered, len(newer))
	for i, n := range newer {
		tell[i] = ledger.Answered(n)
	}
	return ledger.TellHosts(ctx, w.db, doubtful, tell)
}
