package tasks

import (
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
	bare  uint16
	taken time.Time // when it last answered anything else
}

const (
	shedAmong = 10 // answers that are counted
	shedMost  = 5  // of which so many are bare 503s
	shedFor   = 10 * time.Second
)

// note notes an answer of a host, and reports whether a bare 503 means that requests come too fast.
func (s *sheds) note(host string, bare bool, now time.Time) bool {
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
		return false
	}
	last.bare |= 1
	n := 0
	for bits := last.bare & (1<<shedAmong - 1); bits > 0; bits &= bits - 1 {
		n++
	}
	return n >= shedMost && now.Sub(last.taken) < shedFor
}
