package ledger

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Batch groups the requests of many goroutines into single statements. While one statement runs, the next requests gather: a
// crowd shares one commit. Where they are few, each may linger for others: a statement costs about the same for one as for ten.
type Batch[Q, A any] struct {
	requests chan request[Q, A]
	turn     chan struct{} // holds a token while a lane gathers
	run      func(context.Context, []Q) ([]A, error)
	weigh    func(Q) int                  // bytes that a request carries
	linger   func(Q, time.Time) time.Time // see NewBatch
	last     time.Time                    // when the last statement began; the goroutine whose turn it is owns it
	size     int
	now      atomic.Int64 // the maximum for now: less while statements take long
}

type request[Q, A any] struct {
	ask  Q
	done func(A, error)
}

// NewBatch groups up to size requests into one call of run, which answers them in their order. It groups fewer if they are
// large by weigh, or if run takes long: a statement beyond its timeout would never get anything done. linger is until when a
// request waits for others, if the last statement began at last. weigh and linger may be nil.
func NewBatch[Q, A any](
	size int, weigh func(Q) int, linger func(ask Q, last time.Time) time.Time, run func(context.Context, []Q) ([]A, error),
) *Batch[Q, A] {
	if weigh == nil {
		weigh = func(Q) int { return 0 }
	}
	if linger == nil {
		linger = func(_ Q, last time.Time) time.Time { return last }
	}
	b := &Batch[Q, A]{
		requests: make(chan request[Q, A], size), turn: make(chan struct{}, 1), run: run, weigh: weigh, linger: linger, size: size,
	}
	b.now.Store(int64(size))
	return b
}

// Run serves requests on so many lanes (connections) until ctx ends.
func (b *Batch[Q, A]) Run(ctx context.Context, lanes int) {
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() { b.lane(ctx) })
	}
	wg.Wait()
	for range len(b.requests) { // no lane serves these any more
		var none A
		(<-b.requests).done(none, ctx.Err())
	}
}

// Do sends a request and waits for the answer. If ctx ends first, the request's outcome is unknown.
func (b *Batch[Q, A]) Do(ctx context.Context, ask Q) (A, error) {
	answers, err := b.DoAll(ctx, []Q{ask})
	return answers[0], err
}

// DoAll is Do for several requests, with the answers in their order. After an error some may be missing.
func (b *Batch[Q, A]) DoAll(ctx context.Context, asks []Q) ([]A, error) {
	type reply struct {
		place  int
		answer A
		err    error
	}
	replies, answers := make(chan reply, len(asks)), make([]A, len(asks))
	for i, ask := range asks {
		b.Tell(ctx, ask, func(a A, err error) { replies <- reply{i, a, err} })
	}
	for range asks {
		select {
		case r := <-replies:
			if r.err != nil {
				return answers, r.err
			}
			answers[r.place] = r.answer
		case <-ctx.Done():
			return answers, ctx.Err()
		}
	}
	return answers, nil
}

// Tell sends a request without waiting for the answer. A lane calls done with it; done must not block. Tell waits for a
// free place among the requests, or for the end of ctx, which is then the answer.
func (b *Batch[Q, A]) Tell(ctx context.Context, ask Q, done func(A, error)) {
	select {
	case b.requests <- request[Q, A]{ask, done}:
	case <-ctx.Done():
		var none A
		done(none, ctx.Err())
	}
}

// Offer sends a request that needs no answer, if there is a free place among the requests.
func (b *Batch[Q, A]) Offer(ask Q) {
	select {
	case b.requests <- request[Q, A]{ask, func(A, error) {}}:
	default:
	}
}

// lane gathers what waits when it has the turn, and serves it. Meanwhile the next requests gather, since one large statement costs less
// than two, and fewer connections do; but not for long, since this one may be stuck.
func (b *Batch[Q, A]) lane(ctx context.Context) {
	for {
		select {
		case b.turn <- struct{}{}:
		case <-ctx.Done():
			return
		}
		pass := sync.OnceFunc(func() { <-b.turn })
		select {
		case first := <-b.requests:
			batch := b.gather(ctx, first)
			late := time.AfterFunc(turnWithin, pass)
			b.serve(ctx, batch)
			late.Stop()
		case <-ctx.Done():
		}
		pass()
	}
}

const (
	crowd      = 32
	turnWithin = 100 * time.Millisecond // no statement of Start or Close waits longer for a lock
	heavy      = 4 << 20                // bytes in one statement
	long       = time.Second
)

// gather takes what is waiting, and lingers for more as long as all of it may, and it is no crowd.
func (b *Batch[Q, A]) gather(ctx context.Context, first request[Q, A]) []request[Q, A] {
	batch, weight, most := []request[Q, A]{first}, b.weigh(first.ask), int(b.now.Load())
	for until := b.linger(first.ask, b.last); len(batch) < most && weight < heavy; {
		next, some := b.next(ctx, until, len(batch) < crowd)
		if !some {
			break
		}
		batch, weight = append(batch, next), weight+b.weigh(next.ask)
		if at := b.linger(next.ask, b.last); at.Before(until) {
			until = at
		}
	}
	b.last = time.Now()
	return batch
}

// next is the next request; if none is waiting and it may linger, the first to come until then.
func (b *Batch[Q, A]) next(ctx context.Context, until time.Time, linger bool) (next request[Q, A], some bool) {
	select {
	case next = <-b.requests:
		return next, true
	default:
	}
	if left := time.Until(until); linger && left > 0 {
		select {
		case next = <-b.requests:
			return next, true
		case <-time.After(left):
		case <-ctx.Done():
		}
	}
	return next, false
}

// learn makes the next statements smaller after one of n requests took long, and larger again later.
func (b *Batch[Q, A]) learn(n int, took time.Duration) {
	switch now := int(b.now.Load()); {
	case took > long:
		b.now.Store(int64(max(min(now, n)/2, 1)))
	case took < long/4 && n >= now:
		b.now.Store(int64(min(2*now, b.size)))
	}
}

// serve answers a batch. A request that spoils the statement fails alone.
func (b *Batch[Q, A]) serve(ctx context.Context, batch []request[Q, A]) {
	var none A
	_ = Apart(batch, func(some []request[Q, A]) error {
		began := time.Now()
		answers, err := b.run(ctx, column(some, func(r request[Q, A]) Q { return r.ask }))
		b.learn(len(some), time.Since(began))
		if Spoiled(err) {
			return err
		}
		for i, r := range some {
			if err != nil {
				r.done(none, err)
			} else {
				r.done(answers[i], nil)
			}
		}
		return nil // the other half may still succeed
	}, func(r request[Q, A], err error) { r.done(none, err) })
}
