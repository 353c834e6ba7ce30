package tasks

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/callq/callq/internal/ledger"
)

// An outcome is tried until Postgres takes it; the log says once that it waits.
func TestRecordSaysOnceThatItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var log bytes.Buffer
		tries := 0
		r := newRecorder(nil, slog.New(slog.NewTextHandler(&log, nil)), nil)
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
