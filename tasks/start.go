package tasks

import (
	"context"
	"errors"
	"time"

	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5/pgxpool"
)

// starts groups what attempts ask at once, starts and acknowledgements, into single statements.
type starts struct {
	*ledger.Batch[ledger.StartRequest, ledger.StartAnswer]
	acks   *ledger.Batch[ledger.Ack, struct{}]
	db     *pgxpool.Pool
	worker string
}

func newStarts(db *pgxpool.Pool, worker string) *starts {
	s := &starts{db: db, worker: worker}
	s.Batch = ledger.NewBatch(batchSize, nil, func(ctx context.Context, requests []ledger.StartRequest) ([]ledger.StartAnswer, error) {
		return s.start(ctx, requests, false)
	})
	s.acks = ledger.NewBatch(batchSize, nil, func(ctx context.Context, acks []ledger.Ack) ([]struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, statementTimeout)
		defer cancel()
		return make([]struct{}, len(acks)), ledger.Acknowledge(ctx, db, acks)
	})
	return s
}

// start starts attempts. Where somebody's transaction is in the way it starts only those whose rows are free, and waits
// for no other; apart: so it does at once.
func (s *starts) start(ctx context.Context, requests []ledger.StartRequest, apart bool) (answers []ledger.StartAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if !apart {
		if answers, err = ledger.Start(ctx, s.db, s.worker, requests); !ledger.Busy(err) {
			return answers, err
		}
	}
	return ledger.StartFree(ctx, s.db, s.worker, requests)
}

// Why an attempt is not started.
var (
	errNotStarted = errors.New("the attempt was not started") // the row is gone or another's: nothing to do
	errCallGone   = errors.New("its call was deleted or cancelled")
	errExpired    = errors.New("its call has expired")
	errDraining   = errors.New("the worker is shutting down")
	errLate       = errors.New("the start took too long") // whether it was started is not known
)

// start asks for the durable start.
func (a *attempt) start(ctx context.Context) (httptask.Grant, error) {
	if a.w.draining() {
		a.w.slots.returned.Add(1)
		a.refused = errDraining
		return httptask.Grant{}, errDraining
	}
	a.m0 = time.Now()
	answer, err := a.w.starts.Do(ctx, a.startRequest())
	return a.answered(ctx, answer, err)
}

func (a *attempt) startRequest() ledger.StartRequest {
	return ledger.StartRequest{CallID: a.callID, Attempt: a.number, Token: a.token, Epoch: a.epoch, Timeout: a.Timeout}
}

// answered is what became of the start, which was answered so: a is then started, or refused.
func (a *attempt) answered(ctx context.Context, answer ledger.StartAnswer, err error) (httptask.Grant, error) {
	defer a.release()
	answer, err = a.certain(ctx, answer, err)
	switch {
	case err != nil:
		a.refused = errLate
	case answer.StartedAt != nil:
		a.started = true
	case answer.Gone:
		a.refused = errCallGone
	case answer.Expired:
		a.refused = errExpired
	default:
		a.refused = errNotStarted
	}
	if answer.Work != nil {
		a.Work = *answer.Work
	}
	g := httptask.Grant{M0: a.m0}
	if answer.SendWithin != nil {
		g.SendBy, g.Arrived = a.m0.Add(*answer.SendWithin), a.arrived
	}
	return g, a.refused
}

// sendWithinMax is the longest send_within that is derived from a window.
const sendWithinMax = 5 * time.Second

// certain asks again until the start's answer is known, with the same token and the same m0, for the first statement may
// still run; past sendWithinMax the gate would refuse the request anyway.
func (a *attempt) certain(ctx context.Context, answer ledger.StartAnswer, err error) (ledger.StartAnswer, error) {
	apart := false // nobody else is to wait with one whose row somebody holds
	for wait := 20 * time.Millisecond; err != nil || answer.Busy; wait = min(2*wait, 200*time.Millisecond) {
		if time.Since(a.m0) > sendWithinMax || !pause(ctx, wait) {
			return ledger.StartAnswer{}, errLate
		}
		if apart = apart || answer.Busy; !apart {
			answer, err = a.w.starts.Do(ctx, a.startRequest())
			continue
		}
		var answers []ledger.StartAnswer
		if answers, err = a.w.starts.start(ctx, []ledger.StartRequest{a.startRequest()}, true); err == nil {
			answer = answers[0]
		}
	}
	return answer, nil
}

// arrived lets the units of an attempt whose answer takes long come free a window after its request has. Where the
// ledger does not hear of it they stay occupied for the longer.
func (a *attempt) arrived(acked time.Time) {
	a.w.starts.acks.Offer(ledger.Ack{CallID: a.callID, Attempt: a.number, Token: a.token, After: acked.Sub(a.m0)})
}

// release ends the attempt's part in its message.
func (a *attempt) release() {
	if a.message != nil {
		a.message.Done()
		a.message = nil
	}
}
