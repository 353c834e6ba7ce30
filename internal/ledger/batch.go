package ledger

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Batch groups what many goroutines ask at once into single statements: while one statement is
// under way the next requests gather, so a lone request waits for nothing and a crowd shares
// one commit. Written by its users through Do and Tell; its lanes run until Run's context ends.
type Batch[Q, A any] struct {
	requests chan request[Q, A]
	turn     chan struct{} // holds a token while a lane has the turn
	run      func(context.Context, []Q) ([]A, error)
	weigh    func(Q) int // bytes that a request carries
	most     int
	now      atomic.Int64 // the most for now: fewer while statements take long
}

type request[Q, A any] struct {
	ask  Q
	done func(A, error)
}

// NewBatch groups up to most requests into one call of run, which answers them in their order, and fewer
// where they carry much, as weigh says, or where run takes long: a statement must not be more than its
// timeout allows, for then nothing in it would ever be done. weigh may be nil.
func NewBatch[Q, A any](most int, weigh func(Q) int, run func(context.Context, []Q) ([]A, error)) *Batch[Q, A] {
	if weigh == nil {
		weigh = func(Q) int { return 0 }
	}
	b := &Batch[Q, A]{requests: make(chan request[Q, A], most), turn: make(chan struct{}, 1), run: run, weigh: weigh, most: most}
	b.now.Store(int64(most))
	return b
}

// Run serves requests on so many lanes (connections) until ctx ends.
func (b *Batch[Q, A]) Run(ctx context.Context, lanes int) {
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() { b.lane(ctx) })
	}
	wg.Wait()
	for { // nobody serves these any more
		select {
		case r := <-b.requests:
			var none A
			r.done(none, ctx.Err())
		default:
			return
		}
	}
}

// Do asks and waits for the answer. When ctx ends first, what became of the request is unknown.
func (b *Batch[Q, A]) Do(ctx context.Context, ask Q) (answer A, err error) {
	type reply struct {
		answer A
		err    error
	}
	replies := make(chan reply, 1)
	b.Tell(ctx, ask, func(a A, err error) { replies <- reply{a, err} })
	select {
	case r := <-replies:
		return r.answer, r.err
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// Tell asks without waiting for the answer, with which a lane calls done; that must not block. It
// waits for a place among the requests, or for the end of ctx, which is then the answer.
func (b *Batch[Q, A]) Tell(ctx context.Context, ask Q, done func(A, error)) {
	select {
	case b.requests <- request[Q, A]{ask, done}:
	case <-ctx.Done():
		var none A
		done(none, ctx.Err())
	}
}

// Offer asks where there is a place among the requests, and wants no answer.
func (b *Batch[Q, A]) Offer(ask Q) {
	select {
	case b.requests <- request[Q, A]{ask, func(A, error) {}}:
	default:
	}
}

// lane serves what is waiting when it has the turn to look. It passes the turn on at once, unless what
// it found is a crowd: then the next gathers until that is served, for one large statement costs less than
// two; but not for long, since this one may be stuck.
func (b *Batch[Q, A]) lane(ctx context.Context) {
	for {
		select {
		case b.turn <- struct{}{}:
		case <-ctx.Done():
			return
		}
		select {
		case first := <-b.requests:
			b.serveInTurn(ctx, b.gather(first))
		case <-ctx.Done():
			<-b.turn
			return
		}
	}
}

func (b *Batch[Q, A]) serveInTurn(ctx context.Context, batch []request[Q, A]) {
	if len(batch) < crowd {
		<-b.turn
		b.serve(ctx, batch)
		return
	}
	pass := time.AfterFunc(turnWithin, func() { <-b.turn })
	b.serve(ctx, batch)
	if pass.Stop() {
		<-b.turn
	}
}

const (
	crowd      = 32
	turnWithin = 20 * time.Millisecond
	heavy      = 4 << 20 // bytes in one statement
	long       = time.Second
)

// gather takes what is waiting, without waiting for more.
func (b *Batch[Q, A]) gather(first request[Q, A]) []request[Q, A] {
	batch := []request[Q, A]{first}
	for weight, most := b.weigh(first.ask), int(b.now.Load()); len(batch) < most && weight < heavy; {
		select {
		case next := <-b.requests:
			batch = append(batch, next)
			weight += b.weigh(next.ask)
		default:
			return batch
		}
	}
	return batch
}

// learn has the next statements do less where one of n requests took long, and then more again.
func (b *Batch[Q, A]) learn(n int, took time.Duration) {
	switch now := int(b.now.Load()); {
	case took > long:
		b.now.Store(int64(max(min(now, n)/2, 1)))
	case took < long/4 && n >= now:
		b.now.Store(int64(min(2*now, b.most)))
	}
}

// serve answers a batch. Where the data of one request spoils the statement, its halves are sent, and so
// on, so that only that one fails.
func (b *Batch[Q, A]) serve(ctx context.Context, batch []request[Q, A]) {
	asks := make([]Q, len(batch))
	for i, r := range batch {
		asks[i] = r.ask
	}
	began := time.Now()
	answers, err := b.run(ctx, asks)
	b.learn(len(batch), time.Since(began))
	if half := len(batch) / 2; Spoiled(err) && half > 0 {
		b.serve(ctx, batch[:half])
		b.serve(ctx, batch[half:])
		return
	}
	for i, r := range batch {
		if err != nil {
			var none A
			r.done(none, err)
			continue
		}
		r.done(answers[i], nil)
	}
}
