package model

import (
	"cmp"
	"slices"
)

// Standstill is a second, smaller model: of a limit that takes the answer to a later request as proof that an earlier one has
// arrived (limit.ProofLater). The API is one program that reads one queue, first in, first out. It may stand still for any time,
// and answers what it has read in any order, or never. Its kernel acknowledges what the program has not read, and keeps it after
// a reset. Steps are coarser than in Model: a request is started as it is written, and the ledger has a unit per attempt.
// Clocks agree, nothing fails over, and TCP sends nothing again.
type Standstill struct {
	Requests     int // that can matter at once, at most 4; with none free a claim waits
	Rate         int8
	Window       int8 // these are in ticks
	Slack        int8 // a written request is in the queue by then, or never
	ArriveWithin int8
	Mistaken     Mistake
}

// Mistake is a rule that a Standstill is told not to keep.
type Mistake int8

const (
	NoMistake      Mistake = iota
	AckIsArrival           // what was acknowledged counts as arrived
	AnyLater               // any later answer counts, also one to a request that was written before the acknowledgement
	TimeoutFrees           // what ended without an answer counts until write + slack
	WriteIsPlaced          // a request has its place in the queue once it is written
	PlaceAtWrite           // that of a request on a new connection is from when it was written
	TwoProbes              // two requests at once count as arrived; the steps name one
	AnswersIgnored         // an answer to an earlier request delays no probe
	OnlyAcked              // only what was acknowledged is overtaken
)

// The rules of a Standstill.
const (
	RuleStandstill = "1: a window holds at most the rate, and one more for each arrive_within without an answer"
	RuleReturn     = "what counts comes back once the API has answered all that came later"
)

const requestCount = 4

// standstill is a state. It is comparable.
type standstill struct {
	requests [requestCount]request
	queue    [requestCount]int8 // of requests, plus one; 0: the rest is empty
	probed   int8               // ticks since the last answer or probe, at most ArriveWithin
	quiet    int8               // the same, while anything is unread: what the rule goes by, and not callq
}

type requestStage int8

const (
	requestFree requestStage = iota
	claimed
	sent
	closed // answered or not
)

type connection int8

const (
	reused    connection = iota // the program knows it
	connected                   // it is new, and in the queue
	accepted                    // it is new, and the program has taken it
)

type request struct {
	stage    requestStage
	conn     connection
	entered  bool  // the kernel has it
	read     int8  // 0: it is unread; else ticks, plus one, until no window holds it
	young    int8  // ticks, plus one, until write + slack
	placed   bool  // callq knows that it is in the queue, or never will be: it was acknowledged, or is closed and old
	waits    int8  // ticks since it is, at most ArriveWithin
	after    uint8 // while it is unanswered: those that were placed when it took its place
	proven   bool  // that it has arrived, by ...
	by       int8  // ... so many ticks from now; those past are negative
	settled  bool  // the ledger has that, instead of unknown
	licensed bool  // it was taken to have arrived after an arrive_within without an answer
}

// unread says whether the request may still be in the queue, or on its way there.
func (r *request) unread() bool { return r.read == 0 && (r.entered || r.young > 0) }

// doubtful says whether it ended, and nobody knows yet whether it has arrived.
func (r *request) doubtful() bool { return r.stage == closed && !r.proven }

// counts says whether it occupies a unit.
func (m Standstill) counts(r *request) bool {
	return r.stage != requestFree && (!r.settled || r.by+m.Window > 0)
}

func (m Standstill) counted(s *standstill) (n int8) {
	for i := range s.requests {
		if m.counts(&s.requests[i]) {
			n++
		}
	}
	return n
}

type standstillStep struct {
	move  standstillMove
	i     int // the request
	state standstill
	order [requestCount]int8 // of its requests in the state before
	bad   string
}

type standstillMove int8

const (
	requestEnters standstillMove = iota
	requestRead
	connectionAccepted
	requestAcknowledged
	requestAnswered
	requestUnanswered
	requestSettled
	requestWritten
	requestClaimed
	requestConnects
	requestUnsent
	requestProbed
	standstillTick
)

// standstillTexts say what each move is. A run in which the API answers takes the first that it can.
var standstillTexts = [...]string{
	requestEnters:       "request %d reaches the kernel",
	requestRead:         "the program reads request %d",
	connectionAccepted:  "the program accepts the connection of request %d, which has not come",
	requestAcknowledged: "request %d is acknowledged",
	requestAnswered:     "request %d is answered",
	requestUnanswered:   "request %d ends without an answer",
	requestSettled:      "the ledger has by when request %d arrived",
	requestWritten:      "request %d is written",
	requestClaimed:      "request %d is claimed",
	requestConnects:     "a connection is made for request %d",
	requestUnsent:       "request %d is not sent",
	requestProbed:       "request %d counts as arrived, for there was no answer",
	standstillTick:      "time passes",
}

// next is every step that s allows.
func (m Standstill) next(s *standstill) (steps []standstillStep) {
	emit := func(move standstillMove, i int, change func(n *standstill, r *request)) {
		n := *s
		change(&n, &n.requests[i])
		m.tidy(&n)
		st := standstillStep{move: move, i: i}
		st.state, st.order = n.sorted()
		if move == requestRead && m.overLimit(&n) {
			st.bad = RuleStandstill
		}
		steps = append(steps, st)
	}
	room, probe := m.counted(s) < m.Rate, m.oldest(s)
	for i := range s.requests {
		r := &s.requests[i]
		if r.stage == requestFree && room && i < m.Requests {
			emit(requestClaimed, i, func(_ *standstill, r *request) { r.stage = claimed })
			room = false // one like the other
		}
		if r.stage == claimed {
			m.sends(emit, i, r)
		}
		if !r.entered && r.young > 0 {
			emit(requestEnters, i, func(n *standstill, r *request) {
				r.entered = true
				if r.conn != connected {
					n.enqueue(i)
				}
			})
		}
		if r.stage == sent {
			m.ends(emit, i, r)
		}
		if r.proven && !r.settled {
			emit(requestSettled, i, func(_ *standstill, r *request) { r.settled = true })
		}
		if probe >= 0 && r.doubtful() && r.waits == probe {
			emit(requestProbed, i, func(n *standstill, _ *request) { m.probe(n, i) })
		}
	}
	if i := int(s.queue[0]) - 1; i >= 0 {
		move := requestRead
		if !s.requests[i].entered {
			move = connectionAccepted
		}
		emit(move, i, func(n *standstill, r *request) {
			n.dequeue(i)
			if r.conn == connected {
				r.conn = accepted
			}
			if r.entered {
				r.read = m.Window + 1
			}
		})
	}
	emit(standstillTick, 0, func(n *standstill, _ *request) { m.tick(n) })
	return steps
}

type emitRequest func(move standstillMove, i int, change func(n *standstill, r *request))

// sends is what a worker does with a claimed attempt. All that is placed when its request takes its place stands before it. That is
// when its connection is made, if that is new, else when it is written.
func (m Standstill) sends(emit emitRequest, i int, r *request) {
	if r.conn == reused {
		emit(requestConnects, i, func(n *standstill, r *request) {
			r.conn, r.after = connected, m.placed(n)
			n.enqueue(i)
		})
	}
	emit(requestWritten, i, func(n *standstill, r *request) {
		if r.conn == reused || m.Mistaken == PlaceAtWrite {
			r.after = m.placed(n)
		}
		r.stage, r.young = sent, m.Slack+1
	})
	emit(requestUnsent, i, func(n *standstill, r *request) {
		n.dequeue(i)
		*r = request{}
	})
}

// ends is what comes of a request that was written. It ends without an answer by its timeout, a reset, or its worker's death.
func (m Standstill) ends(emit emitRequest, i int, r *request) {
	if r.entered && !r.placed && !r.proven {
		emit(requestAcknowledged, i, func(_ *standstill, r *request) {
			r.placed = true
			if m.Mistaken == AckIsArrival {
				r.arrived(max(0, r.young-1))
			}
		})
	}
	if r.read > 0 {
		emit(requestAnswered, i, func(n *standstill, r *request) {
			if m.Mistaken == AnyLater {
				r.after = m.placed(n)
			}
			for j := range n.requests {
				if r.after&(1<<j) != 0 {
					n.requests[j].arrived(max(0, n.requests[j].young-1))
				}
			}
			r.arrived(0)
			r.stage, n.quiet = closed, 0
			if m.Mistaken != AnswersIgnored {
				n.probed = 0
			}
		})
	}
	emit(requestUnanswered, i, func(_ *standstill, r *request) {
		r.stage = closed
		if m.Mistaken == TimeoutFrees {
			r.arrived(max(0, r.young-1))
		}
	})
}

func (r *request) arrived(by int8) {
	if !r.proven || by < r.by {
		r.proven, r.by = true, by
	}
}

// placed are the requests that are placed and may be unread.
func (m Standstill) placed(s *standstill) (set uint8) {
	for i := range s.requests {
		r := &s.requests[i]
		if !r.proven && (r.placed || m.Mistaken == WriteIsPlaced && r.stage >= sent) {
			set |= 1 << i
		}
	}
	return set
}

// oldest is for how long the oldest request in doubt has waited, if it may count as arrived (assumedSQL); else -1.
func (m Standstill) oldest(s *standstill) int8 {
	longest := int8(-1)
	for i := range s.requests {
		if r := &s.requests[i]; r.doubtful() {
			if !r.placed || r.waits < m.ArriveWithin {
				return -1
			}
			longest = max(longest, r.waits)
		}
	}
	if s.probed < m.ArriveWithin {
		return -1
	}
	return longest
}

func (m Standstill) probe(n *standstill, i int) {
	r := &n.requests[i]
	r.licensed = n.quiet >= m.ArriveWithin
	n.probed, n.quiet = 0, 0
	r.arrived(0)
	r.settled = true
	for j := range n.requests {
		if o := &n.requests[j]; m.Mistaken == TwoProbes && o.doubtful() {
			o.arrived(0)
			o.settled = true
			return
		}
	}
}

func (m Standstill) overLimit(s *standstill) bool {
	n := int8(0)
	for i := range s.requests {
		if r := &s.requests[i]; r.read > 1 && !r.licensed {
			n++
		}
	}
	return n > m.Rate
}

func (m Standstill) tick(n *standstill) {
	for i := range n.requests {
		r := &n.requests[i]
		r.young = max(0, r.young-1)
		if r.read > 1 {
			r.read--
		}
		if r.placed {
			r.waits = min(r.waits+1, m.ArriveWithin)
		}
		if r.proven {
			r.by = max(r.by-1, -m.Window)
		}
	}
	n.probed = min(n.probed+1, m.ArriveWithin)
	n.quiet = min(n.quiet+1, m.ArriveWithin)
}

// tidy frees requests that matter no more, and forgets what does not.
func (m Standstill) tidy(n *standstill) {
	waiting, unread, proven := false, false, uint8(0)
	for i := range n.requests {
		r := &n.requests[i]
		if r.stage == closed {
			r.after = 0
			if r.young == 0 && !r.entered {
				n.dequeue(i) // a connection without a request
			}
			if r.young == 0 && m.Mistaken != OnlyAcked {
				r.placed = true
			}
			if !m.counts(r) && !r.unread() && r.read <= 1 {
				*r = request{}
			}
		}
		if r.proven {
			r.placed, r.waits = false, 0
			proven |= 1 << i
			if r.entered {
				r.young = 0
			}
		}
		unread = unread || r.unread()
		waiting = waiting || r.stage >= sent && !r.proven
	}
	for i := range n.requests {
		n.requests[i].after &^= proven
		if n.requests[i].stage == requestFree {
			for j := range n.requests {
				n.requests[j].after &^= 1 << i
			}
		}
	}
	if !waiting {
		n.probed = m.ArriveWithin // what comes to be in doubt waits for longer
	}
	if !unread {
		n.quiet = 0
	}
}

func (s *standstill) enqueue(i int) {
	for k := range s.queue {
		if s.queue[k] == 0 {
			s.queue[k] = int8(i) + 1
			return
		}
	}
}

func (s *standstill) dequeue(i int) {
	kept := 0
	for _, q := range s.queue {
		if q != int8(i)+1 {
			s.queue[kept] = q
			kept++
		}
	}
	clear(s.queue[kept:])
}

// sorted is s with its requests in an order that their numbers do not matter for, and which each was before. So most states that
// differ only in those are one.
func (s *standstill) sorted() (n standstill, order [requestCount]int8) {
	var keys [requestCount]int
	for i := range s.requests {
		r := &s.requests[i]
		order[i] = int8(i)
		for _, part := range []int8{
			int8(r.stage), int8(r.conn), bit(r.entered), r.read, r.young, bit(r.placed), r.waits, bit(r.proven), 8 - r.by,
			bit(r.settled), bit(r.licensed), int8(slices.Index(s.queue[:], int8(i)+1) + 1),
		} {
			keys[i] = keys[i]<<4 | int(part)
		}
	}
	slices.SortStableFunc(order[:], func(a, b int8) int { return cmp.Compare(keys[b], keys[a]) })
	n = *s
	for to, from := range order {
		n.requests[to] = s.requests[from]
		n.requests[to].after = 0
		for k, was := range order {
			if s.requests[from].after&(1<<was) != 0 {
				n.requests[to].after |= 1 << k
			}
		}
		if k := slices.Index(s.queue[:], from+1); k >= 0 {
			n.queue[k] = int8(to) + 1
		}
	}
	return n, order
}

func bit(b bool) int8 {
	if b {
		return 1
	}
	return 0
}
