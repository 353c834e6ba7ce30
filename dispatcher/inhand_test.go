package dispatcher

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A turn in hand outlives the context by what a claim and its hand-over take, and no turn lasts longer than
// tickTimeout.
func TestTurnInHandIsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		stopped, bound time.Duration // after its begin
	}{
		{"told to stop before it began", 0, stopWithin},
		{"told to stop within it", time.Second, time.Second + stopWithin},
		{"told to stop near its end", tickTimeout - time.Second, tickTimeout},
		{"not told to stop", time.Hour, tickTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(c.stopped, cancel)
				synctest.Wait()
				bounded, end := new(Dispatcher).inHand(ctx)
				defer end()
				<-bounded.Done()
				if took := time.Since(begun); took != c.bound {
					t.Errorf("it was ended after %s, want %s", took, c.bound)
				}
				cancel()
			})
		})
	}
}
