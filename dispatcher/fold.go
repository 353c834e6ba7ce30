package dispatcher

import (
	"context"

	"github.com/callq/callq/internal/lines"
)

const (
	foldCrowd = 16  // times the lines that a claim looks at: so many rows of news are few
	foldRest  = 100 // to look for them takes at most one part in so many of the time
)

// fold is for a million calls that each wait for a time of their own, as retries after an outage do: as many rows
// of news would take those long who count what waits.
func (d *Dispatcher) fold(ctx context.Context) (int, error) {
	began := d.cfg.Now()
	if began.Before(d.foldedRest) {
		return 0, nil
	}
	err := lines.Fold(ctx, d.cfg.Pool, foldCrowd*d.cfg.Lines)
	now := d.cfg.Now()
	d.foldedRest = now.Add(foldRest * now.Sub(began))
	return 0, err
}
