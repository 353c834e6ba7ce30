package dispatcher

import (
	"cmp"
	"fmt"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/lines"
)

// inLine is a line with those of its calls that stand first, locked.
type inLine struct {
	lines.Line
	calls  []lines.Call
	passed []lines.Entry // at the same places, and cannot be claimed
	served int           // of calls: chosen, or refused
}

// candidate is a call that a claim may take.
type candidate struct {
	lines.Call
	Key, Task string
	Priority  int16
}

// served is what came of a turn.
type served struct {
	chosen  []candidate
	pools   []*pool     // where each of the chosen goes
	refused []candidate // cannot be made as they are
	last    string      // the key that was served last; of use where chosen is not empty
	// stuck is the call that a limit which all keys share has no room for. Small calls do not pass
	// a large one, or it would wait for ever.
	stuck   *held
	blocked []held // the next calls of keys whose own limits have no room for them
	hasRead bool
	unread  *string // the first key that stopped at an unread call: the next claim begins with it
}

// held is a call that waits for units.
type held struct {
	key      string
	cost     int64
	priority int16
}

// serve goes round the keys in their order, a call each, until want calls are chosen, a limit that
// they share has no room, or nobody's next call can be taken. The first unread call that it comes to it
// reads, however long that takes; keys stop at any other.
func (c *round) serve(keys []string, want int, read func(*lines.Call) error) (served, error) {
	var s served
	for waiting := keys; len(waiting) > 0; {
		var next []string
		for _, key := range waiting {
			if len(s.chosen) == want {
				return s, nil
			}
			line, err := c.next(&s, key, read)
			if err != nil {
				return s, err
			}
			if line == nil {
				continue
			}
			call := *line.first()
			admitted, shared := c.head.Admit(key, call.Cost)
			switch {
			case shared:
				s.stuck = &held{key, call.Cost, line.Priority}
				return s, nil
			case !admitted:
				s.blocked = append(s.blocked, held{key, call.Cost, line.Priority})
				continue
			}
			line.served++
			s.chosen, s.pools, s.last = append(s.chosen, line.candidate(call)), append(s.pools, c.roster.choose(line.Task, c.random)), key
			next = append(next, key)
		}
		waiting = next
	}
	return s, nil
}

// next is the line of a key whose first call comes next, and that is read, or has to wait for units anyway.
func (c *round) next(s *served, key string, read func(*lines.Call) error) (*inLine, error) {
	for {
		line := s.nextOf(c.of[key], c.head.limits, c.head.Admission, c.roster)
		if line == nil || !line.first().Unread {
			return line, nil
		}
		if fits, _ := c.head.Fits(key, line.first().Cost); !fits {
			return line, nil
		}
		if s.hasRead {
			s.unread = cmp.Or(s.unread, &key)
			return nil, nil
		}
		s.hasRead = true
		if err := read(line.first()); err != nil {
			return nil, err
		}
	}
}

func (l *inLine) first() *lines.Call { return &l.calls[l.served] }

func (l *inLine) candidate(c lines.Call) candidate { return candidate{c, l.Key, l.Task, l.Priority} }

// nextOf is the line of a key whose first call comes next, of those that a pool has room for. Calls that
// can never be made leave their lines on the way.
func (s *served) nextOf(key []*inLine, limits []lockedLimit, a limit.Admission, r *roster) *inLine {
	var best *inLine
	for _, line := range key {
		for line.served < len(line.calls) {
			c := line.calls[line.served]
			if i, exceeds := a.Exceeds(line.Key, c.Cost); exceeds && c.Refusal == nil {
				reason := fmt.Sprintf("cost %d is over limit %s, which allows %s", c.Cost, limits[i].Name, limits[i].rate())
				c.Refusal = &reason
			}
			if c.Refusal == nil {
				break
			}
			s.refused = append(s.refused, line.candidate(c))
			line.served++
		}
		if line.served < len(line.calls) && r.can(line.Task) && (best == nil || line.before(best)) {
			best = line
		}
	}
	return best
}

// before says whether the first call of l comes before that of other: within a line the order stands.
func (l *inLine) before(other *inLine) bool {
	a, b := l.calls[l.served], other.calls[other.served]
	return cmp.Or(cmp.Compare(l.Priority, other.Priority), a.ReadyAt.Compare(b.ReadyAt), cmp.Compare(a.ID, b.ID)) < 0
}

// left is where the line stands behind what was served, and behind what cannot be claimed on the way, whose
// ids it returns. calls are how many have left it.
func (l *inLine) left() (to lines.Left, passed []int64) {
	to = lines.Left{Line: l.Line, From: l.Head, Gone: int64(l.served)}
	if l.served > 0 {
		to.Head, to.Taken = l.calls[l.served-1].Seq, l.calls[l.served-1].Place
	}
	for _, e := range l.passed {
		if l.served < len(l.calls) && !comesBefore(e, l.calls[l.served].Entry) {
			break
		}
		passed = append(passed, e.ID)
		to.Gone++
		if comesBefore(lines.Entry{Seq: to.Head, Place: to.Taken}, e) {
			to.Head, to.Taken = e.Seq, e.Place
		}
	}
	return to, passed
}

func comesBefore(a, b lines.Entry) bool {
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Place, b.Place)) < 0
}
