package claim

import (
	"cmp"
	"slices"
	"time"

	"github.com/callq/callq/internal/backlog"
)

// known is what a dispatcher knows of the flows of queues. It holds as long as no other claims. While somebody holds an old snapshot,
// who reads a flow passes all versions that it had since then, and each claim makes two. So claims read flows only now and then.
type known map[string]knownFlows

// knownFlows are those of a queue that are not parked, of some tasks.
type knownFlows struct {
	list   []backlog.Flow // in line
	tasks  []string
	served string    // the key that was served last
	noted  time.Time // when that was last written into the queue's row, by Postgres's clock
	until  time.Time // then they are read anew, for somebody may have written them by hand; zero: they are not known
}

const (
	knownMost = 256         // flows of a queue
	placed    = 32          // of so many, a drain is told the places; of more, each has few versions
	knownFor  = time.Second // at least
	knownRest = 4000        // to read them takes at most one part in so many of the time

	servedLag = 250 * time.Millisecond // from one writing of the key served last to the next
)

// take returns what is known of a queue's flows, and forgets it until the claim that changes them is committed.
func (k known) take(queue string) knownFlows {
	f := k[queue]
	delete(k, queue)
	return f
}

// keep keeps what is known after a claim.
func (k known) keep(queue string, f knownFlows) {
	if f.known() && len(f.list) <= knownMost {
		k[queue] = f
	}
}

// active reports whether calls wait in the queue's flows; nil: it is not known.
func (k known) active(queue string, now time.Time) *bool {
	f := k[queue]
	if !now.Before(f.until) {
		return nil
	}
	return new(slices.ContainsFunc(f.list, func(l backlog.Flow) bool { return l.Calls > 0 }))
}

// readFlows are flows that a claim began to read and has now. More: there are others.
func readFlows(list []backlog.Flow, more bool, tasks []string, served string, began, now time.Time) knownFlows {
	if more {
		return knownFlows{}
	}
	until := now.Add(max(knownFor, knownRest*now.Sub(began)))
	return knownFlows{list: slices.SortedFunc(slices.Values(list), inLine), tasks: tasks, served: served, until: until}
}

func (f knownFlows) known() bool { return !f.until.IsZero() }

// first returns the flows of tasks in the order of their turns: those behind a key, then the others. It returns false where they are to be
// read.
func (f knownFlows) first(tasks []string, behind string, now time.Time) (list []backlog.Flow, known bool) {
	unknown := func(task string) bool { return !slices.Contains(f.tasks, task) }
	if !now.Before(f.until) || slices.ContainsFunc(tasks, unknown) {
		return nil, false
	}
	list = slices.DeleteFunc(slices.Clone(f.list), func(l backlog.Flow) bool { return !slices.Contains(tasks, l.Task) })
	next := slices.IndexFunc(list, func(l backlog.Flow) bool { return l.Key > behind })
	if next < 0 {
		return list, true
	}
	return slices.Concat(list[next:], list[:next]), true
}

// filed is what is known once a drain has filed calls: nothing if it changed more.
func (f knownFlows) filed(d backlog.Drained) knownFlows {
	if !f.known() || d.Else {
		return knownFlows{}
	}
	return f.with(d.Filed)
}

// consumed is what is known once calls of so many flows were consumed, and keys parked: nothing if not all flows were where they
// were known to be.
func (f knownFlows) consumed(of int, done []backlog.Flow, parked int, served string) knownFlows {
	if !f.known() || len(done) < of || parked > 0 {
		return knownFlows{}
	}
	f.served = served
	return f.with(done)
}

// noteServed reports whether to write which key was served last: not at each claim, for that leaves a version of the queue's row. Another
// dispatcher that goes on may serve again the keys of that while.
func (f *knownFlows) noteServed(now time.Time) bool {
	if since := now.Sub(f.noted); f.known() && since >= 0 && since < servedLag {
		return false
	}
	f.noted = now
	return true
}

// places returns the flows whose places a drain is told.
func (f knownFlows) places() []backlog.Flow {
	if len(f.list) > placed {
		return nil
	}
	return f.list
}

// with is f with flows as they have become, and new ones.
func (f knownFlows) with(changed []backlog.Flow) knownFlows {
	f.list = slices.Clone(f.list)
	for _, l := range changed {
		i, is := slices.BinarySearchFunc(f.list, l, inLine)
		switch {
		case is:
			f.list[i] = l
		case slices.Contains(f.tasks, l.Task):
			f.list = slices.Insert(f.list, i, l)
		}
	}
	return f
}

func inLine(a, b backlog.Flow) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Task, b.Task))
}
