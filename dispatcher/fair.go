package dispatcher

import (
	"fmt"
	"slices"

	"github.com/callq/callq/internal/limit"
)

// candidate is a call that a claim may take. Refusal says what is wrong with it, if anything.
type candidate struct {
	ID      int64   `db:"id"`
	Key     string  `db:"key"`
	Cost    int64   `db:"cost"`
	Task    string  `db:"task"`
	Refusal *string `db:"refusal"`
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
}

// held is a call that waits for units.
type held struct {
	key  string
	cost int64
}

// serve goes round the keys in their order, a call each, until want calls are chosen, a limit that
// they share has no room, or nobody's next call can be taken. Within a key the order is the
// candidates'.
func serve(keys []string, candidates []candidate, limits []lockedLimit, a limit.Admission, r *roster, want int) served {
	lines := make(map[string][]candidate, len(keys))
	for _, c := range candidates {
		lines[c.Key] = append(lines[c.Key], c)
	}
	var s served
	waiting := slices.Clone(keys)
	for len(waiting) > 0 {
		var next []string
		for _, key := range waiting {
			if len(s.chosen) == want {
				return s
			}
			c, ok := s.takeHead(lines, key, limits, a, r)
			if !ok {
				continue
			}
			admitted, shared := a.Admit(key, c.Cost)
			switch {
			case shared:
				s.stuck = &held{key, c.Cost}
				return s
			case !admitted:
				s.blocked = append(s.blocked, held{key, c.Cost})
				continue
			}
			s.chosen, s.pools, s.last = append(s.chosen, c), append(s.pools, r.choose(c.Task)), key
			next = append(next, key)
		}
		waiting = next
	}
	return s
}

// takeHead takes the first candidate of a key that can be made and that a pool has room for.
func (s *served) takeHead(lines map[string][]candidate, key string, limits []lockedLimit, a limit.Admission, r *roster) (candidate, bool) {
	for len(lines[key]) > 0 {
		c := lines[key][0]
		lines[key] = lines[key][1:]
		if i, exceeds := a.Exceeds(c.Cost); exceeds && c.Refusal == nil {
			reason := fmt.Sprintf("cost %d is over limit %s, which allows %s", c.Cost, limits[i].Name,
				limit.Rate{Units: limits[i].Rate, Window: limits[i].Window})
			c.Refusal = &reason
		}
		switch {
		case c.Refusal != nil:
			s.refused = append(s.refused, c)
		case r.can(c.Task):
			return c, true
		}
	}
	return candidate{}, false
}
