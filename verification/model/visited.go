package model

import (
	"hash/maphash"
	"sync/atomic"
)

// visited knows each distinct state by its print, a hash of 64 bits under a seed of the run, and how
// each was reached first. Two states with one print would be taken for one, and what follows from
// the later alone would not be seen: among n states the chance that there are any such is at most
// n * n / 2^65, with 30 million 1 in 40,000, and another one in the next run.
type visited struct {
	seed   maphash.Seed
	table  []atomic.Uint64 // prints; 0: free
	owners []owner         // by explorer
}

// owner is what one explorer found; only it writes there. An id is an index there times the number
// of explorers, plus the explorer's number.
type owner struct {
	prints  []uint64
	parents []uint32
	_       [64]byte // apart from the next one's in the caches
}

const (
	stepsMost = 64 // no state allows more
	tableSize = 4 * blockSize * stepsMost
)

func newVisited(explorers int) *visited {
	return &visited{seed: maphash.MakeSeed(), table: make([]atomic.Uint64, tableSize), owners: make([]owner, explorers)}
}

func (v *visited) len() int {
	n := 0
	for i := range v.owners {
		n += len(v.owners[i].prints)
	}
	return n
}

func (v *visited) counted(explorer int) int { return len(v.owners[explorer].prints) }

func (v *visited) print(s *State) uint64 { return max(1, maphash.Comparable(v.seed, *s)) }

// add says whether s is new, and its id then.
func (v *visited) add(explorer int, s *State, parent uint32) (id uint32, isNew bool) {
	print := v.print(s)
	mask := uint64(len(v.table) - 1)
	for h := print & mask; ; h = (h + 1) & mask {
		at := v.table[h].Load()
		if at == 0 && v.table[h].CompareAndSwap(0, print) {
			break
		}
		if at == 0 {
			at = v.table[h].Load()
		}
		if at == print {
			return 0, false
		}
	}
	o := &v.owners[explorer]
	id = uint32(len(o.prints)*len(v.owners) + explorer)
	o.prints, o.parents = append(o.prints, print), append(o.parents, parent)
	return id, true
}

// room is how many states may be added before it is asked again; nobody adds any meanwhile.
func (v *visited) room() int {
	n := v.len()
	if 2*n > len(v.table) {
		v.table = make([]atomic.Uint64, 2*len(v.table))
		mask := uint64(len(v.table) - 1)
		for i := range v.owners {
			for _, print := range v.owners[i].prints {
				h := print & mask
				for v.table[h].Load() != 0 {
					h = (h + 1) & mask
				}
				v.table[h].Store(print)
			}
		}
	}
	return len(v.table) / 4
}

// way is the prints from the beginning to the state.
func (v *visited) way(id uint32) []uint64 {
	n := uint32(len(v.owners))
	var way []uint64
	for id != 0 {
		o := &v.owners[id%n]
		way = append(way, o.prints[id/n])
		id = o.parents[id/n]
	}
	return way
}
