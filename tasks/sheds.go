package tasks

import (
	"math/bits"
	"sync"
	"time"
)

// sheds knows which hosts answer some requests and turn most away with a bare 503, as nginx's limit_req does. A host that answers
// nothing else is down.
type sheds struct {
	mu sync.Mutex
	of map[string]*lastAnswers
}

// lastAnswers are a host's last: a bit each, the newest the lowest, 1 for a bare 503.
type lastAnswers struct {
	bare  uint64
	taken time.Time // when it last answered anything else
}

const (
	shedAmong = 10 // answers that are counted
	shedMost  = 5  // of which so many are bare 503s
	shedFor   = 10 * time.Second

	tooFastAmong = 40 // the same, for requests that come together: a limiter turns nearly all of those away, a failing host some
	tooFastMost  = 30
)

// note notes an answer of a host, and reports whether a bare 503 means that requests come too fast, and whether those that come
// together do (ledger.Shut.Evenly).
func (s *sheds) note(host string, bare bool, now time.Time) (sheds, together bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.of[host]
	if last == nil {
		if s.of == nil || len(s.of) >= 10_000 {
			s.of = map[string]*lastAnswers{}
		}
		last = &lastAnswers{}
		s.of[host] = last
	}
	last.bare <<= 1
	if !bare {
		last.taken = now
		return false, false
	}
	last.bare |= 1
	among := func(n int) int { return bits.OnesCount64(last.bare & (1<<n - 1)) }
	return among(shedAmong) >= shedMost && now.Sub(last.taken) < shedFor, among(tooFastAmong) >= tooFastMost
}
