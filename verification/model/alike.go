package model

import "math/bits"

// nameCalls numbers the calls by what is true of them, whichever they were, and says whether that
// changed any number. Two calls of which the same is said may be in either order: then two states
// that are alike are both explored, which costs time and nothing else.
func (m *Model) nameCalls(s *State) bool {
	var marks [callCount]uint64
	for c := range marks {
		k, r := &s.pg.calls[c], &s.repl.calls[c]
		marks[c] = mix(1, uint64(k.status)|uint64(k.attempts)<<8|uint64(k.fails)<<16|
			uint64(r.status)<<24|uint64(r.attempts)<<32|uint64(r.fails)<<40)
	}
	for i := range s.seen {
		g := &s.seen[i]
		if !g.used {
			continue
		}
		mark := s.markRow(&s.pg.rows[i], uint64(g.attempt)) + mix(4, uint64(uint8(g.messages))|uint64(g.writes)<<8|
			uint64(g.flight)<<16|uint64(uint8(g.arrival))<<24|uint64(g.version)<<32|flag(g.landed)<<40|flag(g.lost)<<41)
		if s.split == 1 {
			mark += 3 * s.markRow(&s.repl.rows[i], 77)
		}
		for w := range s.runs {
			if r := &s.runs[w]; r.phase != idle && int(r.slot) == i {
				mark += mix(5, uint64(r.phase)|uint64(uint8(r.m0))<<8|uint64(r.off)<<16|uint64(r.by)<<24|
					uint64(r.ending)<<32|flag(r.token == s.pg.rows[i].token)<<40)
			}
		}
		for a := range s.asks {
			if q := &s.asks[a]; q.token != 0 && int(q.slot) == i {
				mark += mix(6, flag(q.locked)|uint64(uint8(q.m0))<<8|flag(q.token == s.pg.rows[i].token)<<16)
			}
		}
		marks[g.call] += mix(7, mark)
	}
	var from [callCount]int8
	for c := range from {
		from[c] = int8(c)
	}
	changed := false
	for c := 1; c < callCount; c++ {
		for j := c; j > 0 && marks[j] < marks[j-1]; j-- {
			marks[j], marks[j-1] = marks[j-1], marks[j]
			from[j], from[j-1] = from[j-1], from[j]
			changed = true
		}
	}
	if !changed {
		return false
	}
	s.renameCalls(from)
	return true
}

// renameCalls gives each call c the number of which from says c.
func (s *State) renameCalls(from [callCount]int8) {
	pg, repl := s.pg.calls, s.repl.calls
	var to [callCount]int8
	for c, f := range from {
		s.pg.calls[c], s.repl.calls[c] = pg[f], repl[f]
		to[f] = int8(c)
	}
	for i := range s.seen {
		if s.seen[i].used {
			s.seen[i].call = to[s.seen[i].call]
		}
	}
}

func (s *State) markRow(r *row, salt uint64) uint64 {
	return mix(2, uint64(r.stage)|uint64(r.epoch)<<8|uint64(uint8(r.claimed))<<16|uint64(uint8(r.at))<<24|
		uint64(uint8(r.until))<<32|flag(r.used)<<40|flag(r.former)<<41|uint64(uint8(r.label))<<48|uint64(r.arrived)<<56) + mix(3, salt)
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// mix is a hash of a word, each salt one of its own.
func mix(salt, x uint64) uint64 {
	high, low := bits.Mul64(x^0x9e3779b97f4a7c15*salt, 0xd6e8feb86659fd93^salt<<32)
	return high ^ low
}

// orderAttempts sorts the attempts by call and number; those that a failover lost come last.
func (s *State) orderAttempts() {
	var from, ranks [slotCount]int
	changed := false
	for i := range from {
		rank := s.rank(i)
		j := i
		for ; j > 0 && ranks[j-1] > rank; j-- {
			ranks[j], from[j] = ranks[j-1], from[j-1]
			changed = true
		}
		ranks[j], from[j] = rank, i
	}
	if !changed {
		return
	}
	old := *s
	var to [slotCount]int8
	for i, f := range from {
		s.seen[i], s.pg.rows[i], s.repl.rows[i] = old.seen[f], old.pg.rows[f], old.repl.rows[f]
		to[f] = int8(i)
	}
	for i := range s.runs {
		if s.runs[i].phase != idle {
			s.runs[i].slot = to[s.runs[i].slot]
		}
	}
	for i := range s.asks {
		if s.asks[i].token != 0 {
			s.asks[i].slot = to[s.asks[i].slot]
		}
	}
}

func (s *State) rank(i int) int {
	g := &s.seen[i]
	switch {
	case !g.used:
		return 10_000
	case g.lost:
		return 1000 + int(g.call)*20 + int(g.attempt)
	}
	return int(g.call)*20 + int(g.attempt)
}

// renumber gives tokens the smallest numbers, in the order in which they are met.
func renumber(s *State) {
	n := numbers{next: 1}
	for i := range s.pg.rows {
		n.number(&s.pg.rows[i].token)
	}
	if s.split == 1 {
		for i := range s.repl.rows {
			n.number(&s.repl.rows[i].token)
		}
	}
	for i := range s.runs {
		n.number(&s.runs[i].token)
	}
	for i := range s.asks {
		n.number(&s.asks[i].token)
	}
}

type numbers struct {
	to   [16]int8
	next int8
}

func (n *numbers) number(t *int8) {
	if *t == 0 {
		return
	}
	if n.to[*t&15] == 0 {
		n.to[*t&15] = n.next
		n.next++
	}
	*t = n.to[*t&15]
}

// sortRest brings workers and statements in order and numbers the tokens.
func sortRest(s *State) {
	if s.runs[1].before(&s.runs[0]) {
		s.runs[0], s.runs[1] = s.runs[1], s.runs[0]
	}
	renumber(s)
	if s.disps[1].before(&s.disps[0]) {
		s.disps[0], s.disps[1] = s.disps[1], s.disps[0]
	}
	if s.asks[1].before(&s.asks[0]) {
		s.asks[0], s.asks[1] = s.asks[1], s.asks[0]
	}
}

func (r *run) before(o *run) bool {
	switch {
	case r.phase != o.phase:
		return r.phase < o.phase
	case r.slot != o.slot:
		return r.slot < o.slot
	case r.m0 != o.m0:
		return r.m0 < o.m0
	case r.off != o.off:
		return r.off < o.off
	case r.by != o.by:
		return r.by < o.by
	}
	return r.ending < o.ending
}

func (d *disp) before(o *disp) bool {
	switch {
	case d.phase != o.phase:
		return d.phase < o.phase
	case d.now != o.now:
		return d.now < o.now
	case d.room != o.room:
		return d.room < o.room
	case d.unlooked != o.unlooked:
		return d.unlooked < o.unlooked
	case d.gainAt != o.gainAt:
		return d.gainAt < o.gainAt
	case d.gain != o.gain:
		return d.gain < o.gain
	}
	return !d.fresh && o.fresh
}

func (a *ask) before(o *ask) bool {
	switch {
	case a.token != o.token:
		return a.token < o.token
	case a.slot != o.slot:
		return a.slot < o.slot
	case a.locked != o.locked:
		return o.locked
	}
	return a.m0 < o.m0
}
