package tasks

import (
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// expired closes an attempt whose call's time has passed before it was started.
func (a *attempt) expired() *ledger.Closing {
	c := a.unsent(errExpired, 0)
	c.Status = callqueue.StatusFailed
	return c
}

// unsent closes an attempt whose request provably never left: nothing is charged, and the call
// waits again, after about d.
func (a *attempt) unsent(err error, d time.Duration) *ledger.Closing {
	if _, notSent := errors.AsType[*notSentError](err); !notSent {
		err = NotSent(err)
	}
	c := a.closing(callqueue.OutcomeNotSent, err)
	c.Status = callqueue.StatusNew
	if d > 0 {
		d = d/2 + rand.N(d)
		c.Delay = &d
	}
	return c
}

// ending is how an attempt ends by its handler's word. arrival nil: provably never sent.
func (a *attempt) ending(err error, arrival *limit.Arrival, requests *int16) *ledger.Closing {
	c := a.closing(callqueue.OutcomeDone, err)
	c.Arrival, c.Requests, c.Result = arrival, requests, a.result
	a.settleCost(c)
	if err == nil {
		c.Status = callqueue.StatusDone
		return c
	}
	c.Failed = true
	if _, permanent := errors.AsType[*permanentError](err); permanent {
		c.Outcome, c.Status = callqueue.OutcomePermanent, callqueue.StatusFailed
		return c
	}
	c.Outcome = callqueue.OutcomeError
	status, delay := a.Policy.Next(a.FailedCount+1, rand.Int64N)
	if later, ok := errors.AsType[*retryAfterError](err); ok {
		delay = later.after
	}
	c.Status, c.Delay = status, &delay
	return c
}

// settleCost has limits that count cost charged what the handler said.
func (a *attempt) settleCost(c *ledger.Closing) {
	c.Settled = a.settled
	c.Saves = a.settled != nil && *a.settled < a.Cost && c.Arrival != nil
}

func (a *attempt) closing(outcome callqueue.Outcome, err error) *ledger.Closing {
	c := &ledger.Closing{
		CallID: a.callID, Attempt: a.number, Token: a.token,
		Unstarted: a.state != started, Outcome: outcome, Frees: a.Frees,
	}
	if err != nil {
		c.Error = clean(err.Error())
	}
	return c
}

// isDecided says whether a handler chose its ending, rather than met an error.
func isDecided(err error) bool {
	_, permanent := errors.AsType[*permanentError](err)
	_, later := errors.AsType[*retryAfterError](err)
	_, snooze := errors.AsType[*snoozeError](err)
	_, notSent := errors.AsType[*notSentError](err)
	return permanent || later || snooze || notSent
}

// clean makes an error's text fit for a text column: valid UTF-8, no NUL, at most 2,000 bytes.
func clean(text string) string {
	const most = 2000
	text = strings.ReplaceAll(text, "\x00", "")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
