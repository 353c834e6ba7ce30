package tasks

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/witness"
)

// beat writes a heartbeat. After a failover it reports what is missing, and has the new server know again what this worker knows.
func (w *Worker) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeatEvery)
	defer cancel()
	spoke, err := w.starts.witness.Heartbeat(ctx, w.db, witness.Row{
		ID: w.id, Pool: w.pool, Tasks: w.Tasks(), Labels: w.cfg.Labels, Slots: w.cfg.Concurrency, HTTP: w.httpSettings(),
	})
	if err != nil {
		return err
	}
	if w.vouches = w.vouches || spoke; !w.vouches {
		return nil
	}
	err = w.vouch(ctx)
	w.vouches = err != nil
	return err
}

// vouch returns which attempts this worker runs or has ended, and records again how these ended.
func (w *Worker) vouch(ctx context.Context) error {
	closings := w.recorder.ended.list()
	attempts := w.running.vouched()
	for _, c := range closings {
		attempts = append(attempts, ledger.Vouched{CallID: c.CallID, Attempt: c.Attempt, Token: c.Token, StartedAt: c.Opened.From, Within: time.Minute})
	}
	vouched, err := ledger.Vouch(ctx, w.db, w.id, attempts)
	if err != nil {
		return err
	}
	closings = slices.DeleteFunc(closings, func(c ledger.Closing) bool { return !slices.Contains(vouched, c.CallID) })
	for _, c := range closings {
		w.recorder.record(w.recording, c, func() {})
	}
	w.log.InfoContext(ctx, "Postgres failed over: attempts of this worker go on, or are recorded again", "worker", w.id,
		"going_on", len(vouched)-len(closings), "recorded_again", len(closings))
	return nil
}

// ended is what was recorded last, of attempts that had started: a server that takes over may lack it.
type ended struct {
	mu         sync.Mutex
	young, old []ledger.Closing
	since      time.Time // when young was begun
	bytes      int       // of its results
}

// A generation is old when it is one of these: the oldest is forgotten then.
const (
	endedFor   = 15 * time.Second
	endedMost  = 2500
	endedBytes = 4 << 20
)

func (e *ended) add(closings []ledger.Closing) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.young) >= endedMost || e.bytes >= endedBytes || time.Since(e.since) >= endedFor {
		e.young, e.old, e.since, e.bytes = nil, e.young, time.Now(), 0
	}
	for _, c := range closings {
		if !c.Unstarted && c.Opened != nil {
			e.young, e.bytes = append(e.young, c), e.bytes+len(c.Result)
		}
	}
}

func (e *ended) list() []ledger.Closing {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Concat(e.old, e.young)
}
