package tasks

import (
	"context"
	"errors"
	"sync"
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
	s.Batch = ledger.NewBatch(batchSize, nil, s.start)
	s.acks = ledger.NewBatch(batchSize, nil, func(ctx context.Context, acks []ledger.Ack) ([]struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, statementTimeout)
		defer cancel()
		return make([]struct{}, len(acks)), ledger.Acknowledge(ctx, db, acks)
	})
	return s
}

func (s *starts) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { s.Run(ctx, lanes) })
	all.Go(func() { s.acks.Run(ctx, 1) })
	all.Wait()
}

func (s *starts) start(ctx context.Context, requests []ledger.StartRequest) ([]ledger.StartAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	answers, err := ledger.Start(ctx, s.db, s.worker, requests)
	if ledger.Busy(err) {
		return ledger.StartFree(ctx, s.db, s.worker, requests)
	}
	return answers, err
}

// apart starts an attempt whose row somebody held, and waits for nobody.
func (s *starts) apart(ctx context.Context, request ledger.StartRequest) (ledger.StartAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	answers, err := ledger.StartFree(ctx, s.db, s.worker, []ledger.StartRequest{request})
	if err != nil {
		return ledger.StartAnswer{}, err
	}
	return answers[0], nil
}

// startState is what is known of an attempt's start. Three answers, not two.
type startState int

const (
	notAsked startState = iota
	started
	notStarted   // the row is gone or another's: nothing to do
	callGone     // the row is ours to close, for its call was deleted or cancelled
	callExpired  // the same, for its call's time has passed
	startUnknown // no answer in time: close it, started or not
)

var (
	errNotStarted = errors.New("the attempt was not started")
	errDraining   = errors.New("the worker is shutting down")
	errLate       = errors.New("the start took too long")
	errCallGone   = errors.New("its call was deleted or cancelled")
	errExpired    = errors.New("its call has expired")
)

// start asks for the durable start.
func (a *attempt) start(ctx context.Context) (httptask.Grant, error) {
	if a.w.draining() {
		a.state = startUnknown
		a.w.slots.returned.Add(1)
		return httptask.Grant{}, errDraining
	}
	a.m0 = time.Now()
	answer, err := a.w.starts.Do(ctx, a.startRequest())
	return a.started(ctx, answer, err)
}

func (a *attempt) startRequest() ledger.StartRequest {
	return ledger.StartRequest{CallID: a.callID, Attempt: a.number, Token: a.token, Epoch: a.epoch, Timeout: a.Timeout}
}

// sendWithinMax is the longest send_within that is derived from a window.
const sendWithinMax = 5 * time.Second

// started is what became of the start, which was answered so. Until the answer is known it asks again
// with the same token and the same m0, for the first statement may still run; past sendWithinMax
// the gate would refuse the request anyway.
func (a *attempt) started(ctx context.Context, answer ledger.StartAnswer, err error) (g httptask.Grant, _ error) {
	defer a.release()
	ask := a.w.starts.Do
	for wait := 20 * time.Millisecond; err != nil || answer.Busy; wait = min(2*wait, 200*time.Millisecond) {
		if time.Since(a.m0) > sendWithinMax || !pause(ctx, wait) {
			a.state = startUnknown
			return g, errLate
		}
		if answer.Busy { // nobody else is to wait with it
			ask = a.w.starts.apart
		}
		answer, err = ask(ctx, a.startRequest())
	}
	switch {
	case answer.StartedAt != nil:
	case answer.Gone:
		a.state = callGone
		return g, errCallGone
	case answer.Expired:
		a.state = callExpired
		return g, errNotStarted
	default:
		a.state = notStarted
		return g, errNotStarted
	}
	a.state, g.M0 = started, a.m0
	if answer.Work != nil {
		a.Work = *answer.Work
	}
	if answer.SendWithin != nil {
		g.SendBy, g.Arrived = a.m0.Add(*answer.SendWithin), a.arrived
	}
	return g, nil
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
