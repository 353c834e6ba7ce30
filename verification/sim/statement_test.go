package sim

import (
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// lane1 gathers what is asked while a statement is on its way, as ledger.Batch does.
type lane1[T any] struct {
	asked   []T
	planned bool
}

// reply is what becomes of a statement. The worker knows it only where it is answered.
type reply int

const (
	answered  reply = iota
	lost            // it was never carried out
	unheard         // it was, but the answer was lost
	carriedOn       // the worker gave up waiting; it is carried out later
)

func (w *world) reply() reply {
	switch {
	case w.fault(w.set.loss / 2):
		return lost
	case w.fault(w.set.loss):
		return unheard
	case w.fault(w.set.loss / 2):
		return carriedOn
	}
	return answered
}

// latency is how long a statement is under way, in each direction.
func (w *world) latency() time.Duration {
	if w.fault(0.02) {
		return w.between(0, time.Second)
	}
	return w.between(100*time.Microsecond, 2*time.Millisecond)
}

// send plans the statement that asks for all that has gathered by then.
func send[T any](k *worker, l *lane1[T], execute func([]T), answer func([]T, bool)) {
	if l.planned {
		return
	}
	l.planned = true
	k.do(k.w.latency(), func() {
		batch := l.asked
		l.asked, l.planned = nil, false
		f := k.w.reply()
		switch f {
		case answered, unheard:
			execute(batch)
		case carriedOn: // on the server, whatever becomes of the worker
			epoch := k.w.lane.epoch
			k.w.after(k.w.between(0, pick(k.w, time.Second, 10*time.Second, time.Minute)), func() {
				if k.w.lane.epoch == epoch { // no other server carries it out
					execute(batch)
				}
			})
		}
		if f != answered {
			k.w.note(0, "", "statement of %s for %d: fate %d", k.id, len(batch), f)
		}
		if k.hazard() {
			return
		}
		wait := k.w.latency()
		if f != answered { // a broken connection, or a timeout
			wait = pick(k.w, wait, k.w.between(0, 300*time.Millisecond), k.w.between(0, 5*time.Second), 5*time.Second)
		}
		k.do(wait, func() { answer(batch, f == answered) })
	})
}

// askStart asks that an attempt be started, under the m0 of its first asking.
func (k *worker) askStart(a *attempt) {
	if slices.Contains(k.starts.asked, a) {
		return
	}
	k.starts.asked = append(k.starts.asked, a)
	send(k, &k.starts, k.executeStarts, func(batch []*attempt, ok bool) {
		if ok && len(batch) > 0 {
			answers := make([]ledger.StartAnswer, len(batch))
			for i, a := range batch {
				answers[i] = a.answer
			}
			k.witness.Started(batch[0].askedAt, answers)
		}
		for _, a := range batch {
			a.startAnswered(ok)
		}
	})
}

func (k *worker) executeStarts(batch []*attempt) {
	requests, asked := make([]ledger.StartRequest, len(batch)), k.witness.Ask()
	for i, a := range batch {
		requests[i] = ledger.StartRequest{
			CallID: a.CallID, Attempt: a.Attempt, Token: a.token, Epoch: a.Epoch, Timeout: a.Timeout,
			Wait: max(0, a.notBefore-a.m0),
		}
		if !a.k.loads(a.Task) {
			requests[i].Epoch, requests[i].Timeout = "", 0 // the queue's timeout
		}
	}
	answers, err := ledger.Start(k.w.ctx, k.w.lane.workers, k.id, requests)
	k.w.must(err)
	for _, answer := range answers {
		i := slices.IndexFunc(batch, func(a *attempt) bool { return a.CallID == answer.CallID && a.token == answer.Token })
		a := batch[i]
		a.answer, a.askedAt = answer, asked
		if answer.Refused == nil {
			if answer.Work != nil {
				a.learn(answer.Work)
			}
			k.w.note(a.CallID, "", "attempt %d is started for %s at %s", a.Attempt, k.id, answer.StartedAt.Format("15:04:05.000000"))
			if a.slack == 0 {
				a.slack = k.w.set.slack(k.w.set.queue(a.Queue).Limits)
			}
			k.w.api.started(a.id(), a.of, answer.StartedAt, k.w.mutant.secondSend)
		} else {
			k.w.note(a.CallID, "", "attempt %d is not started for %s: %v", a.Attempt, k.id, answer.Refused)
		}
	}
}

// learn takes from the start's answer what was not loaded before. What has started is of the epoch.
func (a *attempt) learn(work *ledger.Work) {
	a.Queue, a.Task, a.Key, a.Cost, a.Timeout = work.Queue, work.Task, work.Key, work.Cost, work.Timeout
	a.FailedCount, a.MaxAttempts = work.FailedCount, work.Policy.MaxAttempts
	a.BackoffMin, a.BackoffMax = work.Policy.BackoffMin, work.Policy.BackoffMax
	a.Limits, a.Keys, a.Costs, a.Epoch, a.of = work.Limits, work.Keys, work.Costs, work.Epoch, a.k.w.calls[a.CallID]
}

// recording is an outcome on its way into the ledger.
type recording struct {
	a *attempt
	c ledger.Closing
	// wait is how long until it is tried again.
	wait  time.Duration
	again bool // it had been recorded, and a failover may have lost that
}

// record writes an outcome down, for as long as that takes; only then is the slot free.
func (k *worker) record(a *attempt, c ledger.Closing) {
	k.w.mutant.closing(k.w, a, &c)
	if a.place != nil {
		a.place.left(a, &c)
	}
	k.w.note(a.CallID, "", "attempt %d ends for %s: %s, then %s %s", a.Attempt, k.id, c.Outcome, c.Status, c.Error)
	k.tryRecord(&recording{a: a, c: c, wait: 20 * time.Millisecond})
}

func (k *worker) tryRecord(r *recording) {
	k.closes.asked = append(k.closes.asked, r)
	send(k, &k.closes, k.executeCloses, func(batch []*recording, ok bool) {
		for _, r := range batch {
			if ok {
				if !r.again {
					r.a.free()
				}
				if r.a.begun && !r.again {
					k.ended = append(k.ended[max(0, len(k.ended)-49):], r)
				}
				continue
			}
			wait := r.wait
			r.wait = min(2*wait, time.Second)
			k.do(wait, func() { k.tryRecord(r) })
		}
	})
}

func (k *worker) executeCloses(batch []*recording) {
	closings := make([]ledger.Closing, len(batch))
	for i, r := range batch {
		closings[i] = r.c
		closings[i].Host = host
	}
	closed, err := k.closer.Close(k.w.ctx, k.w.lane.workers, closings)
	k.w.must(err)
	for _, id := range closed {
		k.w.note(id, "", "closed for %s", k.id)
	}
	k.w.wake(0.1)
}
