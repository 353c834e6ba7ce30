package tasks

import (
	"context"
	"time"

	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
)

const exchangeEvery = time.Second

// exchange tells other workers, and recovery, which requests to hosts in doubt were answered, and hears what they saw: requests
// that were acknowledged before another took its place have been read when that one is answered. While nothing is in doubt it
// reads an empty table.
func (w *Worker) exchange(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	c := clockReading{sent: time.Now()}
	known, err := ledger.AnsweredHosts(ctx, w.db)
	if err != nil {
		return err
	}
	c.received = time.Now()
	var newer []ledger.Answered
	for _, k := range known {
		c.at = k.Now
		if !k.Written.IsZero() {
			w.arrivals.Tell(c.heard(k))
		}
		if own, ok := w.arrivals.Newest(k.Host); ok {
			if told := c.told(own); k.Written.IsZero() || told.Written.After(k.Written) {
				newer = append(newer, told)
			}
		}
	}
	doubtful := w.arrivals.Doubtful()
	if len(newer) == 0 && len(doubtful) == 0 {
		return nil
	}
	return ledger.TellHosts(ctx, w.db, doubtful, newer)
}

// clockReading is a reading of Postgres's clock between two of the worker's, which is never set. By it moments are translated at each
// exchange anew, so that no older one outlives a step of Postgres's clock.
type clockReading struct {
	at             time.Time
	sent, received time.Time
}

// told bounds, on Postgres's clock, a place from below and an answer from above.
func (c clockReading) told(a httptask.Answered) ledger.Answered {
	return ledger.Answered{Host: a.Host, Written: c.at.Add(a.Written.Sub(c.received)), Answered: c.at.Add(a.Answered.Sub(c.sent))}
}

// heard translates such bounds back, the place less ledger.ClockMargin.
func (c clockReading) heard(a ledger.Answered) httptask.Answered {
	return httptask.Answered{
		Host: a.Host, Written: c.sent.Add(a.Written.Sub(c.at) - ledger.ClockMargin), Answered: c.received.Add(a.Answered.Sub(c.at)),
	}
}
