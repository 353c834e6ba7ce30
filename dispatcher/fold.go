package dispatcher

import (
	"context"

	"github.com/callq/callq/internal/lines"
)

const (
	foldCrowd = 16  // times the lines that a claim looks at: so many rows of news are few
	foldRest  = 100 // to look for more takes at most one part in so many of the time
)

// fold is for a million calls that each wait for a time of their own, as retries after an outage do: as many rows
// of news would take those long who count what waits. Where most of such have ended, pruner goes through them. Looks
// of this dispatcher wait for it: what takes longer than drainFor goes on at the next tick; whole goes on to
// the end.
func (d *Dispatcher) fold(ctx context.Context, whole bool) (int, error) {
	began := d.cfg.Now()
	if began.Before(d.foldedRest) {
		return 0, nil
	}
	goOn := func() bool { return !d.stopping.Load() && (whole || d.cfg.Now().Sub(began) < drainFor) }
	if all, err := lines.Fold(ctx, d.cfg.Pool, foldCrowd*d.cfg.Lines, goOn); err != nil || !all {
		return 0, err
	}
	crowded, err := lines.CrowdedNews(ctx, d.cfg.Pool)
	begin(d.prunings.news, crowded)
	now := d.cfg.Now()
	d.foldedRest = now.Add(foldRest * now.Sub(began))
	return 0, err
}
