package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// shutLimits closes the limits of an attempt, for every worker, when the API answered that it wants
// no more requests for a while; where a limit is per key, for that key. It is done before the
// outcome is recorded, and tried once: without it the call alone waits.
func (a *attempt) shutLimits(answer error) {
	later, ok := errors.AsType[*retryAfterError](answer)
	if !ok || later.after <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(a.w.recording, shutWithin)
	defer cancel()
	for i, name := range a.Limits {
		_, err := ledger.Pause(ctx, a.w.cfg.Pool, ledger.Paused{
			What: "limit", Name: name, Key: a.Keys[i], For: &later.after, Extend: true, By: a.w.id,
			Reason: fmt.Sprintf("the API answered call %d: %s", a.callID, clean(answer.Error())),
		})
		if err != nil && !errors.Is(err, ledger.ErrUnknown) {
			a.w.log.WarnContext(ctx, "limit not closed for Retry-After", "limit", name, "err", err)
		}
	}
}

const shutWithin = 5 * time.Second
