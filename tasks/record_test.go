package tasks

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// An outcome is tried until Postgres takes it; the log says once that it waits.
func TestRecordSaysOnceThatItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var log bytes.Buffer
		tries := 0
		r := newRecorder(nil, slog.New(slog.NewTextHandler(&log, nil)), &slots{})
		r.closings = ledger.NewBatch(1, nil, nil, func(_ context.Context, closings []ledger.Closing) ([]error, error) {
			if tries++; tries < 10 {
				return nil, errors.New("Postgres is away")
			}
			return make([]error, len(closings)), nil
		})
		go r.closings.Run(ctx, 1)
		done := make(chan struct{})
		r.record(ctx, ledger.Closing{CallID: 7, Attempt: 1}, func() { close(done) })
		<-done
		cancel()
		if n := strings.Count(log.String(), "outcome not recorded"); tries != 10 || n != 1 {
			t.Errorf("%d tries, said %d times, want 10 and once:\n%s", tries, n, log.String())
		}
	})
}

// An end waits for those of other attempts that run, unless somebody may wait for what it frees.
func TestEndsWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arrived := ledger.Closing{Arrival: &limit.Arrival{}, Outcome: callqueue.OutcomeDone}
		for name, c := range map[string]struct {
			slots, taken int // of which the ends that come have some
			closing      ledger.Closing
			ends         int
			want         time.Duration // the last is recorded
		}{
			"another one runs":             {100, 3, arrived, 2, lingerMost},
			"all that ran end":             {100, 3, arrived, 3, 0},
			"alone":                        {100, 1, arrived, 1, 0},
			"slots are wanted":             {4, 3, arrived, 1, 0},
			"it gives units back":          {100, 3, ledger.Closing{}, 1, 0},
			"it frees a concurrency limit": {100, 3, ledger.Closing{Arrival: &limit.Arrival{}, Frees: true}, 1, 0},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			s := &slots{tokens: make(chan struct{}, c.slots)}
			for range c.taken {
				s.tokens <- struct{}{}
			}
			r := newRecorder(nil, slog.New(slog.DiscardHandler), s)
			statements := 0
			r.closings = ledger.NewBatch(100, nil, r.linger, func(_ context.Context, closings []ledger.Closing) ([]error, error) {
				statements++
				return make([]error, len(closings)), nil
			})
			go r.closings.Run(ctx, 1)
			begun, recorded := time.Now(), make(chan struct{}, c.ends)
			for range c.ends {
				r.record(ctx, c.closing, func() { recorded <- struct{}{} })
			}
			for range c.ends {
				<-recorded
			}
			if took := time.Since(begun); took != c.want || statements != 1 {
				t.Errorf("%s: recorded after %s in %d statements, want %s and one", name, took, statements, c.want)
			}
			cancel()
			synctest.Wait()
		}
	})
}
