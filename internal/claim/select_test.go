package claim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/pools"
	"github.com/google/go-cmp/cmp"
)

//callq:guarantee 10
func TestChoose(t *testing.T) {
	t.Parallel()
	call := func(id int64, key string, cost int64) candidate {
		return candidate{backlog.Call{ID: id, Waits: true, Cost: cost}, key, "http", 5, nil, time.Time{}, nil}
	}
	other := func(c candidate, priority int16, task string) candidate {
		c.Priority, c.Task = priority, task
		return c
	}
	wrongly := func(c candidate) candidate {
		c.Refusal = new("wrong")
		return c
	}
	all := func(n int64) limit.Quota { return limit.Quota{Most: 100, Room: map[string]int64{"": n}} }
	cases := []struct {
		name       string
		candidates []candidate
		a          limit.Admission
		want       int
		chosen     []int64
		refused    []int64
		stuck      *held
		blocked    []held
		last       string
	}{
		{
			"round the keys, a call each",
			[]candidate{call(1, "x", 1), call(2, "x", 1), call(3, "x", 1), call(4, "y", 1), call(5, "z", 1)},
			nil, 4,
			[]int64{1, 4, 5, 2},
			nil, nil, nil, "x",
		},
		{
			"until a limit that all share has no room",
			[]candidate{call(1, "x", 1), call(2, "x", 1), call(3, "y", 1)},
			limit.Admission{all(2)},
			9,
			[]int64{1, 3},
			nil, &held{"x", 1, 5}, nil, "y",
		},
		{
			"small calls do not pass a large one",
			[]candidate{call(1, "x", 60), call(2, "x", 50), call(3, "y", 10), call(4, "y", 1)},
			limit.Admission{{Most: 100, CountCost: true, Room: map[string]int64{"": 100}}},
			9,
			[]int64{1, 3},
			nil, &held{"x", 50, 5}, nil, "y",
		},
		{
			"a key without room keeps nobody else",
			[]candidate{call(1, "x", 1), call(2, "y", 1), call(3, "y", 1)},
			limit.Admission{{Most: 100, PerKey: true, Room: map[string]int64{"x": 0, "y": 2}}},
			9,
			[]int64{2, 3},
			nil, nil,
			[]held{{"x", 1, 5}},
			"y",
		},
		{
			"what is wrong is skipped by",
			[]candidate{wrongly(call(1, "x", 1)), call(2, "x", 1), other(call(3, "x", 1), 5, "nobody's"), call(4, "x", 101)},
			limit.Admission{{Most: 100, CountCost: true, Room: map[string]int64{"": 100}}},
			9,
			[]int64{2},
			[]int64{1, 4},
			nil, nil, "x",
		},
		{
			"within a key by priority, then by age, whatever the task",
			[]candidate{call(5, "x", 1), call(6, "x", 1), other(call(4, "x", 1), 5, "mail"), other(call(9, "x", 1), 0, "http"), other(call(7, "x", 1), 5, "mail")},
			nil, 9,
			[]int64{9, 4, 5, 6, 7},
			nil, nil, nil, "x",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := &pools.Pools{List: []*pools.Pool{{Name: "http", Tasks: []string{"http", "mail"}, Capacity: 100}}}
			limits := make([]policy.LockedLimit, len(c.a))
			for i := range c.a {
				c.a[i].Room = maps.Clone(c.a[i].Room)
			}
			list := &candidates{underLocks: &underLocks{pools: r, head: &headroom{Admission: c.a, limits: limits}}, of: flows(c.candidates)}
			var s batch
			list.choose(&s, []string{"x", "y", "z"}, c.want, time.Now(), rand.Int64N)
			ids := func(list []candidate) (ids []int64) {
				for _, c := range list {
					ids = append(ids, c.ID)
				}
				return ids
			}
			got := []any{ids(s.chosen), ids(s.refused), s.stuck, s.blocked, s.chosen[len(s.chosen)-1].Key}
			want := []any{c.chosen, c.refused, c.stuck, c.blocked, c.last}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(held{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if slices.ContainsFunc(s.chosen, func(c candidate) bool { return c.to == nil }) || r.Capacity() != 100-len(s.chosen) {
				t.Errorf("chosen %+v, capacity %d", s.chosen, r.Capacity())
			}
		})
	}
}

// flows puts candidates into their flows.
func flows(candidates []candidate) map[string][]*flow {
	of := map[string][]*flow{}
	for _, c := range candidates {
		i := slices.IndexFunc(of[c.Key], func(l *flow) bool { return l.Priority == c.Priority && l.Task == c.Task })
		if i < 0 {
			i = len(of[c.Key])
			of[c.Key] = append(of[c.Key], &flow{Flow: backlog.Flow{Key: c.Key, Priority: c.Priority, Task: c.Task}})
		}
		of[c.Key][i].calls = append(of[c.Key][i].calls, c.Call)
	}
	return of
}

// Where a flow stands after a turn: behind what was served, and what could not be on the way.
func TestLeft(t *testing.T) {
	t.Parallel()
	waits := func(seq int64, place int32, id int64) backlog.Call {
		return backlog.Call{Seq: seq, Place: place, ID: id, Waits: true}
	}
	ended := func(seq int64, place int32, id int64) backlog.Call {
		return backlog.Call{Seq: seq, Place: place, ID: id}
	}
	for _, c := range []struct {
		name     string
		calls    []backlog.Call
		passed   int
		head     int64
		consumed int32
		removed  int64
		again    []int64
	}{
		{"nothing", []backlog.Call{waits(1, 3, 13)}, 0, 1, 2, 0, nil},
		{"some are served", []backlog.Call{waits(1, 3, 13), waits(1, 4, 14), waits(2, 1, 21)}, 2, 1, 4, 2, nil},
		{"into the next chunk", []backlog.Call{waits(1, 3, 13), waits(2, 1, 21)}, 2, 2, 1, 2, nil},
		{
			"what has ended is passed, as far as the first that waits",
			[]backlog.Call{ended(1, 3, 13), waits(1, 4, 14), ended(1, 5, 15), waits(2, 1, 21), ended(2, 2, 22)},
			2, 1, 5, 3,
			[]int64{13, 15},
		},
		{"all have ended", []backlog.Call{ended(1, 3, 13), ended(2, 1, 21)}, 0, 2, 1, 2, []int64{13, 21}},
		{"more than it counts", slices.Repeat([]backlog.Call{ended(1, 3, 13)}, 10), 0, 1, 3, 9, slices.Repeat([]int64{13}, 10)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := flow{Flow: backlog.Flow{Head: 1, Consumed: 2, Calls: 9}, calls: c.calls, passed: c.passed}
			again := f.advance()
			got := []any{f.Head, f.Consumed, 9 - f.Calls, again}
			if diff := cmp.Diff([]any{c.head, c.consumed, c.removed, c.again}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
