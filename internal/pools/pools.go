// Package pools reads which worker pools there are, and how many attempts may still be handed to each.
//
// A pool is the live workers that handle the same tasks and carry the same labels: they share an Asynq queue. Unstarted
// attempts are kept to the free slots, and where calls are short to a few more. What is handed over cannot be overtaken: behind
// slow calls, it would keep a call of another queue or key from the slot that comes free next. While no worker is alive, a few
// are claimed all the same for the pools last seen, so that work is ready for the first that comes.
package pools

import (
	"slices"

	"github.com/callq/callq/internal/handoff"
)

// Pools are the pools that attempts may be handed to. A claim counts what is open under a lock that all claims share.
type Pools struct {
	List     []*Pool
	OpenFrom *int64 // the smallest batch of an open attempt; nil: there is none
}

// Pool is the workers that handle the same tasks and carry the same labels.
type Pool struct {
	Name      string   `db:"pool"`
	Tasks     []string `db:"tasks"`
	Labels    []string `db:"labels"`
	Workers   int      `db:"workers"`   // alive
	Slots     int      `db:"slots"`     // of the smallest live worker
	AllSlots  int      `db:"all_slots"` // of the live workers
	Started   int      `db:"-"`         // open attempts that somebody has started
	Unstarted int      `db:"-"`         // open attempts that have not started, but for those in runs
	InRuns    int      `db:"-"`         // open attempts in runs that have not started
	Capacity  int      `db:"-"`         // attempts that may still be handed to it
	Soon      int      `db:"-"`         // running attempts that end soon, if they go on to end as they did of late
}

const (
	capacityWithoutWorkers = 200
	runsPerSlot            = 20  // unstarted attempts in runs
	highWater              = 256 // unstarted attempts
)

// withCapacity gives the live pools their capacity. If none is alive, those last seen and that of the task http share
// capacityWithoutWorkers evenly.
func withCapacity(list []*Pool) *Pools {
	r := &Pools{}
	unstarted := 0
	for _, p := range list {
		if unstarted += p.Unstarted; p.Workers == 0 {
			continue
		}
		if r.List = append(r.List, p); !p.aboveHighWater() {
			p.Capacity = max(0, p.most()-p.Unstarted)
		}
	}
	if len(r.List) > 0 {
		return r
	}
	if !slices.ContainsFunc(list, func(p *Pool) bool { return p.handles(handoff.HTTP) }) {
		list = append(list, &Pool{Name: handoff.HTTP, Tasks: []string{handoff.HTTP}})
	}
	r.List = list
	for _, p := range r.List {
		p.Capacity = max(0, capacityWithoutWorkers-unstarted) / len(r.List)
	}
	return r
}

func (p *Pool) handles(task string) bool { return slices.Contains(p.Tasks, task) }

// free is how many slots of live workers run nothing.
func (p *Pool) free() int { return max(0, p.AllSlots-p.Started) }

// most is how many unstarted attempts the pool may have: its free slots, and beyond them as many as come free soon. These spare
// workers of short calls from waiting for the next claim.
func (p *Pool) most() int { return p.free() + min(p.free(), p.Soon) }

// aboveHighWater reports whether the pool's workers have enough for a while. Then it gets no more, so that the next claim
// is worth its while.
func (p *Pool) aboveHighWater() bool { return p.Unstarted >= highWater && 2*p.Unstarted > 3*p.free() }

// AboveHighWater reports whether all pools have enough for a while.
func (r *Pools) AboveHighWater() bool {
	return !slices.ContainsFunc(r.List, func(p *Pool) bool { return !p.aboveHighWater() })
}

// On is the pools whose workers carry a label; all for "".
func (r *Pools) On(label string) *Pools {
	without := func(p *Pool) bool { return label != "" && !slices.Contains(p.Labels, label) }
	return &Pools{List: slices.DeleteFunc(slices.Clone(r.List), without)}
}

// Tasks are the names of those that a pool with capacity handles.
func (r *Pools) Tasks() []string {
	var names []string
	for _, p := range r.List {
		if p.Capacity > 0 {
			names = append(names, p.Tasks...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Capacity is how many attempts may be handed over in all.
func (r *Pools) Capacity() int {
	sum := 0
	for _, p := range r.List {
		sum += p.Capacity
	}
	return sum
}

// SomeFull reports whether there is a pool without capacity.
func (r *Pools) SomeFull() bool {
	return slices.ContainsFunc(r.List, func(p *Pool) bool { return p.Capacity <= 0 })
}

// InRuns is how many attempts more may be handed over in runs. They use slots for a short part of the time.
func (r *Pools) InRuns() int {
	sum := 0
	for _, p := range r.List {
		sum += max(0, runsPerSlot*p.Slots*p.Workers-p.InRuns)
	}
	return sum
}

// CanTake reports whether a pool that handles a task has capacity.
func (r *Pools) CanTake(task string) bool {
	return slices.ContainsFunc(r.List, func(p *Pool) bool { return p.Capacity > 0 && p.handles(task) })
}

// Choose draws one of the pools that handle a task, each as likely as it has capacity, and takes one place in it. It
// returns nil if none has any. The draw makes sure that a call which one pool gave back reaches the others too.
func (r *Pools) Choose(task string, random func(n int64) int64) *Pool {
	var chosen *Pool
	sum := 0
	for _, p := range r.List {
		if p.Capacity <= 0 || !p.handles(task) {
			continue
		}
		if sum += p.Capacity; sum == p.Capacity || random(int64(sum)) < int64(p.Capacity) {
			chosen = p
		}
	}
	if chosen != nil {
		chosen.Take()
	}
	return chosen
}

// Take takes one place in the pool, if it has capacity.
func (p *Pool) Take() bool {
	if p.Capacity <= 0 {
		return false
	}
	p.Capacity--
	p.Unstarted++
	return true
}

// For is the pool to which a task's attempts go that were handed to pool before: the same one, while it is alive or no
// other can take them.
func (r *Pools) For(task, before string) string {
	other := before
	for _, p := range r.List {
		if p.Name == before {
			return before
		}
		if p.handles(task) {
			other = p.Name
		}
	}
	return other
}

// Packing is how many attempts one message carries when the pool gets m of a task. Each message costs a worker two trips to
// Redis and a statement, and each worker two more statements. So few attempts make a message a worker, or one of up to 32 if
// they are HTTP calls, which take next to no CPU. Many make four a worker, so that the next goes to a worker that is free.
func (p *Pool) Packing(task string, m int) int {
	w, few := max(p.Workers, 1), 8
	each := (m + w - 1) / w
	if task == handoff.HTTP {
		each, few = m, 32
	}
	k := max(min(each, few), min(m/(4*w), 128))
	return min(k, max(p.Slots/4, 1))
}
