package forecast

import (
	"cmp"
	"container/heap"
	"math"
	"time"
)

// What a forecast may take: these make it milliseconds.
const (
	mostPieces = 20_000 // in which calls start
	mostTurns  = 50_000 // of keys
	mostSteps  = 1_000_000
	mostOpens  = 20_000 // times that hours are asked
	mostFrees  = 100_000
)

// Horizon is how far a forecast looks: what would come later is not known. No sum of times reaches beyond what a Duration holds.
const Horizon = 100 * 365 * 24 * time.Hour

// span is n nanoseconds, at most up to the horizon.
func span(n float64) time.Duration { return time.Duration(min(n, float64(Horizon))) }

// run is a world as it goes on.
type run struct {
	*World
	shared []*supply // by place in Limits; nil: it is per key
	queues []*queue
	piece  int64 // calls that start together, at most
	turn   int64 // of a key's calls, at most so many have their turn together
	first  int64 // likewise, the first time; and a key's last call, which is asked about, has the turn after so many to itself
	rounds int64
	tag    float64 // of the queue that had its turn last
	at     time.Duration
	opened int  // times that hours were asked
	tooFar bool // a supply has more to give out than can be said
	Result
}

type queue struct {
	*Queue
	place      int
	tag        float64       // how many of its calls have started, by weight, as if none had ever had nothing to start
	asked      bool          // it has the call that is asked about
	open, shut time.Duration // it is known to be open from one to the other
	ready      []*keys       // in the order of their turns
	blocked    blocked
}

type keys struct {
	*Keys
	left    int64     // calls of all of them
	turn    int64     // of these, in this turn
	turns   int64     // that were given
	own     []*supply // by place in Queue.Limits; nil: it is shared
	readyAt time.Duration
}

// blocked is a heap of keys by when they are ready.
type blocked []*keys

func (b blocked) Len() int           { return len(b) }
func (b blocked) Less(i, j int) bool { return b[i].readyAt < b[j].readyAt }
func (b blocked) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *blocked) Push(k any)        { *b = append(*b, k.(*keys)) }
func (b *blocked) Pop() any {
	old := *b
	k := old[len(old)-1]
	*b = old[:len(old)-1]
	return k
}

// Run lets time go on until the call that is asked about starts, or all calls have.
func (w *World) Run() Result { return w.run(mostPieces, mostTurns) }

func (w *World) run(pieces, turns int64) Result {
	r := &run{World: w, Result: Result{Last: make([]time.Duration, len(w.Queues)), Held: make([]time.Duration, len(w.Limits))}}
	r.size(pieces, turns)
	r.begin()
	for range mostSteps {
		q, n, at := r.next()
		if q != nil && at >= Horizon || r.opened > mostOpens || r.tooFar {
			break
		}
		if q == nil || r.start(q, n, at) {
			r.Known = true
			break
		}
	}
	return r.Result
}

// size chooses how many calls start together.
func (r *run) size(pieces, turns int64) {
	var total, most, groups int64
	for i := range r.Queues {
		for j := range r.Queues[i].Keys {
			k := &r.Queues[i].Keys[j]
			groups++
			total += k.Count * k.Calls
			if k.Asked != nil {
				most = k.Calls
			}
		}
	}
	if most > 0 { // none of its queue has many more turns than it
		total = 0
		for i := range r.Queues {
			for j := range r.Queues[i].Keys {
				k := &r.Queues[i].Keys[j]
				total += k.Count * min(k.Calls, most+1)
			}
		}
	} else {
		for i := range r.Queues {
			for j := range r.Queues[i].Keys {
				most = max(most, r.Queues[i].Keys[j].Calls)
			}
		}
	}
	r.piece = max(1, total/min(pieces, max(5*pieces/max(1, int64(len(r.Queues))), 1000)))
	rounds := max(turns/max(1, groups), 8)
	r.turn = max(1, (most+rounds-1)/rounds)
	r.rounds = (most - 1 + r.turn - 1) / r.turn
	r.first = most - 1 - max(0, r.rounds-1)*r.turn
}

// begin makes the supplies, and gives all keys their turns.
func (r *run) begin() {
	holds := make([]time.Duration, len(r.Limits)) // of the queue whose calls run longest
	costs := make([]float64, len(r.Limits))
	for i := range r.Queues {
		for _, l := range r.Queues[i].Limits {
			holds[l], costs[l] = max(holds[l], r.Queues[i].Holds), max(costs[l], r.Queues[i].units(&r.Limits[l]))
		}
	}
	r.shared = make([]*supply, len(r.Limits))
	for i := range r.Limits {
		if l := &r.Limits[i]; !l.PerKey {
			r.shared[i] = newSupply(l, l.State, 1, float64(r.piece)*costs[i], r.piece > 1, r.Now, holds[i])
			r.tooFar = r.tooFar || r.shared[i].tooFar
		}
	}
	for i := range r.Queues {
		q := &queue{Queue: &r.Queues[i], place: i}
		for j := range q.Keys {
			k := &keys{Keys: &q.Keys[j], left: q.Keys[j].Count * q.Keys[j].Calls, own: make([]*supply, len(q.Limits))}
			for n, place := range q.Limits {
				l := &r.Limits[place]
				if !l.PerKey {
					continue
				}
				of := State{Units: float64(l.Rate.Units), Room: float64(l.Rate.Most())}
				if k.Asked != nil {
					of = l.State
				} else if k.Of != nil {
					of = k.Of[n]
				}
				most := float64(min(r.piece, k.Count*r.turn)) * q.units(l)
				k.own[n] = newSupply(l, of, float64(k.Count), most, r.piece*r.turn > 1, r.Now, q.Holds)
				r.tooFar = r.tooFar || k.own[n].tooFar
			}
			if k.Asked != nil {
				q.asked = true
			}
			if k.left > 0 {
				r.wait(q, k)
			}
		}
		r.queues = append(r.queues, q)
	}
}

// units is what a call takes of a limit.
func (q *Queue) units(l *Limit) float64 {
	if l.CountCost {
		return q.Cost
	}
	return 1
}

// last says that the call that is asked about is the next of its key.
func (k *keys) last() bool { return k.Asked != nil && k.left == 1 }

// wait gives keys their next turn, or lets them wait for the rest of one.
func (r *run) wait(q *queue, k *keys) {
	if k.turn == 0 {
		size := r.turn
		switch k.turns {
		case r.rounds:
			size = 1
		case 0:
			size = r.first
		}
		k.turn = min(k.Count*size, k.left)
		k.turns++
	}
	if k.readyAt = r.readyAt(q, k); k.readyAt > r.at {
		heap.Push(&q.blocked, k)
	} else {
		q.ready = append(q.ready, k)
	}
}

// readyAt is when the key's next calls are due, and its own limits have their units.
func (r *run) readyAt(q *queue, k *keys) time.Duration {
	at := min(k.From, Horizon)
	if k.last() {
		at = min(max(at, k.Asked.From), Horizon)
	}
	for i, s := range k.own {
		if s != nil {
			at = min(max(at, s.when(r.takes(q, k, i, min(r.piece, k.turn)))), Horizon)
		}
	}
	return at
}

// takes is what a key's next n calls take of a limit of their queue.
func (r *run) takes(q *queue, k *keys, place int, n int64) float64 {
	l := &r.Limits[q.Limits[place]]
	if l.CountCost && k.last() {
		return k.Asked.Cost
	}
	return float64(n) * q.units(l)
}

// next is the queue whose calls start next, how many, and when. Queues that could at the same time share what there is: by
// start-time fair queueing (Goyal, Vin, Cheng, 1996).
func (r *run) next() (first *queue, n int64, at time.Duration) {
	n = r.piece
	for _, q := range r.queues {
		if k := r.ready(q); k != nil {
			n = min(n, k.turn)
		}
	}
	for _, q := range r.queues {
		if q.first() == nil {
			continue
		}
		could := r.could(q, n)
		if q.tag = max(q.tag, r.tag); first == nil || could < at || could == at && q.tag < first.tag {
			first, at = q, could
		}
	}
	return first, n, at
}

// could is when the next n calls of a queue can start.
func (r *run) could(q *queue, n int64) time.Duration {
	k := q.first()
	at := min(max(r.at, k.readyAt, q.Opens), Horizon)
	for i, place := range q.Limits {
		if s := r.shared[place]; s != nil {
			at = min(max(at, s.when(r.takes(q, k, i, n))), Horizon)
		}
	}
	return r.opens(q, at)
}

// ready lets keys have their turn that are no longer blocked, and returns the first.
func (r *run) ready(q *queue) *keys {
	for len(q.blocked) > 0 && q.blocked[0].readyAt <= r.at {
		q.ready = append(q.ready, heap.Pop(&q.blocked).(*keys))
	}
	return q.first()
}

// first is whose turn it is: nil: nobody's.
func (q *queue) first() *keys {
	switch {
	case len(q.ready) > 0:
		return q.ready[0]
	case len(q.blocked) > 0:
		return q.blocked[0]
	}
	return nil
}

// opens is the first moment from at on within the queue's hours.
func (r *run) opens(q *queue, at time.Duration) time.Duration {
	for at < Horizon && r.opened <= mostOpens && (at < q.open || at >= q.shut) {
		r.opened++
		open, until := q.Hours.Open(r.Now.Add(at))
		switch {
		case !open:
			at = until.Sub(r.Now)
		case until.IsZero():
			q.open, q.shut = at, math.MaxInt64
		default:
			q.open, q.shut = at, until.Sub(r.Now)
		}
	}
	return at
}

// start lets the next n calls of a queue start, and reports whether the call that is asked about is one of them.
func (r *run) start(q *queue, n int64, at time.Duration) bool {
	k := q.first()
	held, until := -1, r.at
	for i, place := range q.Limits {
		s := r.shared[place]
		if s == nil {
			s = k.own[i]
		}
		units := r.takes(q, k, i, n)
		if when := s.when(units); when > until {
			held, until = place, when
		}
		s.take(at, units, q.Holds, q.Lag)
	}
	if held >= 0 {
		r.Held[held] += until - r.at
	}
	r.at = at
	if k.last() {
		r.Start = at
		return true
	}
	if q.asked {
		r.Before += n
	} else {
		r.Others += n
	}
	r.tag, q.tag = q.tag, q.tag+float64(n)/cmp.Or(q.Weight, 1)
	r.Last[q.place] = at
	k.left, k.turn = k.left-n, k.turn-n
	switch {
	case len(q.ready) == 0:
		heap.Pop(&q.blocked)
	case k.turn > 0 && r.readyAt(q, k) <= at: // it keeps its turn
		return false
	default:
		q.ready = q.ready[1:]
	}
	if k.left > 0 {
		r.wait(q, k)
	}
	return false
}
