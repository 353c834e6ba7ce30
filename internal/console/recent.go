package console

import (
	"context"
	"sync"
	"time"

	"github.com/callq/callq/internal/admin"
)

// recent keeps the last hour's history, to which a minute is added once a minute: pages that are read each second need not read it
// each time.
type recent struct {
	mu   sync.Mutex
	at   time.Time
	last *admin.Recent
}

const recentFor = 10 * time.Second

func (r *recent) read(ctx context.Context, pool admin.Pool) (*admin.Recent, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != nil && time.Since(r.at) < recentFor {
		return r.last, nil
	}
	last, err := admin.ReadRecent(ctx, pool, plotBack)
	if err != nil {
		return nil, err
	}
	r.last, r.at = last, time.Now()
	return last, nil
}
