package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/witness"
)

// starts groups what attempts ask at once, starts and acknowledgements, into single statements.
type starts struct {
	*ledger.Batch[ledger.StartRequest, ledger.StartAnswer]
	acks    *ledger.Batch[ledger.Running, struct{}]
	db      schema.DB
	worker  string
	witness witness.Witness
}

func newStarts(db schema.DB, worker string) *starts {
	s := &starts{db: db, worker: worker}
	s.Batch = ledger.NewBatch(batchSize, nil, lingerStart, func(ctx context.Context, requests []ledger.StartRequest) ([]ledger.StartAnswer, error) {
		return s.start(ctx, requests, false)
	})
	s.acks = ledger.NewBatch(batchSize, nil, nil, func(ctx context.Context, acks []ledger.Running) ([]struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, statementTimeout)
		defer cancel()
		return make([]struct{}, len(acks)), ledger.Acknowledge(ctx, db, acks)
	})
	return s
}

// lingerStart has starts a few milliseconds apart, so that those of a message share a statement. One whose units are not free
// yet has time.
func lingerStart(r ledger.StartRequest, last time.Time) time.Time {
	if r.Wait > 0 {
		return r.Asked.Add(min(r.Wait/2, lingerMost))
	}
	return last.Add(lingerMost / 10)
}

// lingerMost is how long a start or an end waits for others to share its statement.
const lingerMost = 50 * time.Millisecond

// start starts attempts. Where somebody's transaction is in the way, it starts only those whose rows are free; apart: so it does
// at once.
func (s *starts) start(ctx context.Context, requests []ledger.StartRequest, apart bool) (answers []ledger.StartAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	asked := s.witness.Ask()
	if !apart {
		answers, err = ledger.Start(ctx, s.db, s.worker, requests)
	}
	if apart || ledger.Busy(err) {
		answers, err = ledger.StartFree(ctx, s.db, s.worker, requests)
	}
	if err == nil {
		s.witness.Started(asked, answers)
	}
	return answers, err
}

// Why an attempt is not started, besides what the ledger refuses.
var (
	errDraining   = errors.New("the worker is shutting down")
	errNoHandler  = errors.New("this worker has no handler for its task")
	errLate       = errors.New("the start took too long") // whether it was started is not known
	errUnreadable = errors.New("its row cannot be read")
)

// unreadable is why an attempt is not started whose row alone makes Postgres err.
func unreadable(err error) error { return fmt.Errorf("%w: %s", errUnreadable, ledger.Reason(err)) }

// start asks for the durable start. After it the attempt is started and its units are free, or it is refused with the error.
func (a *attempt) start(ctx context.Context) (g httptask.Grant, err error) {
	if a.w.draining() {
		a.refused = errDraining
		return g, errDraining
	}
	if a.place != nil {
		answer, err := a.place.started()
		return a.awaitUnits(ctx, answer, err)
	}
	a.m0 = time.Now()
	answer, err := a.w.starts.Do(ctx, a.startRequest())
	return a.awaitUnits(ctx, answer, err)
}

func (a *attempt) startRequest() ledger.StartRequest {
	return ledger.StartRequest{
		CallID: a.callID, Attempt: a.number, Token: a.token, Epoch: a.Epoch, Timeout: a.Timeout,
		Wait: max(0, a.notBefore.Sub(a.m0)), Asked: a.m0,
	}
}

// awaitUnits takes the start's answer, and sleeps until the attempt's units are free. m0 then is no later than the start that the
// ledger has.
func (a *attempt) awaitUnits(ctx context.Context, answer ledger.StartAnswer, err error) (g httptask.Grant, _ error) {
	answer, a.refused = a.known(ctx, answer, err)
	a.release()
	if a.refused != nil {
		return g, a.refused
	}
	a.m0 = a.m0.Add(answer.After)
	if starts := a.m0.Add(answer.Wait); starts.After(a.notBefore) { // the ledger knows of a later time than the message
		time.Sleep(answer.Wait)
		a.m0 = starts
	} else {
		time.Sleep(time.Until(a.notBefore))
		a.m0 = a.notBefore
	}
	a.started = true
	if answer.Work != nil {
		a.Work = *answer.Work
	}
	a.From, a.SendWithin = answer.StartedAt, answer.SendWithin
	if a.place != nil {
		if a.refused = a.place.await(a); a.refused != nil {
			return g, a.refused
		}
	}
	g.M0 = a.m0
	if answer.SendWithin != nil {
		g.SendBy, g.Arrived = a.m0.Add(*answer.SendWithin), a.arrived
	}
	a.w.running.outlivesFrom(a, a.m0.Add(a.Timeout))
	return g, nil
}

// known is the start's answer, or why the attempt is not started. It asks again until that is known, with the same token and the
// same m0, for the first statement may still run. Past sendWithinMax the gate would refuse the request anyway.
func (a *attempt) known(ctx context.Context, answer ledger.StartAnswer, err error) (ledger.StartAnswer, error) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		switch {
		case ledger.BadData(err):
			return answer, unreadable(err)
		case err == nil && !errors.Is(answer.Refused, ledger.ErrBusy):
			return answer, answer.Refused
		case time.Since(a.m0) > sendWithinMax || !pause(ctx, wait):
			return answer, errLate
		}
		var answers []ledger.StartAnswer
		answers, err = a.w.starts.start(ctx, []ledger.StartRequest{a.startRequest()}, true) // others would wait with it
		answer = answers[0]
		answer.After = 0 // the first statement may have started it
	}
}

// sendWithinMax is the longest send_within that is derived from a window.
const sendWithinMax = 5 * time.Second

// arrived lets the units of an attempt that takes long come free a window after its request has been read; or, of limits that go
// by it, acknowledged. Where the ledger does not hear of it they stay occupied for the longer.
func (a *attempt) arrived(acked, later time.Time) {
	r := ledger.Running{CallID: a.callID, Attempt: a.number, Token: a.token}
	if !acked.IsZero() && a.w.recorder.closer.GoByAcks(a.Limits) {
		r.Acked = new(acked.Sub(a.m0))
	}
	if !later.IsZero() {
		r.Overtaken = new(later.Sub(a.m0))
	}
	if r.Acked != nil || r.Overtaken != nil {
		a.w.starts.acks.Offer(r)
	}
}

// release ends the attempt's part in its message.
func (a *attempt) release() {
	if a.message != nil {
		a.message.Done()
		a.message = nil
	}
}
