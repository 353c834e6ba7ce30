package dispatcher

import (
	"maps"
	"slices"
	"testing"

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
		return candidate{backlog.Call{Entry: backlog.Entry{ID: id}, Cost: cost}, key, "http", 5, nil}
	}
	other := func(c candidate, priority int16, task string) candidate {
		c.Priority, c.Task = priority, task
		return c
	}
	wrongly := func(c candidate) candidate {
		c.Refusal = new("wrong")
		return c
	}
	unread := func(c candidate) candidate {
		c.Unread = true
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
		read       []int64
		unread     string
	}{
		{
			"round the keys, a call each",
			[]candidate{call(1, "x", 1), call(2, "x", 1), call(3, "x", 1), call(4, "y", 1), call(5, "z", 1)},
			nil, 4,
			[]int64{1, 4, 5, 2},
			nil, nil, nil, "x", nil, "",
		},
		{
			"until a limit that all share has no room",
			[]candidate{call(1, "x", 1), call(2, "x", 1), call(3, "y", 1)},
			limit.Admission{all(2)},
			9,
			[]int64{1, 3},
			nil, &held{"x", 1, 5}, nil, "y", nil, "",
		},
		{
			"small calls do not pass a large one",
			[]candidate{call(1, "x", 60), call(2, "x", 50), call(3, "y", 10), call(4, "y", 1)},
			limit.Admission{{Most: 100, CountCost: true, Room: map[string]int64{"": 100}}},
			9,
			[]int64{1, 3},
			nil, &held{"x", 50, 5}, nil, "y", nil, "",
		},
		{
			"a key without room keeps nobody else",
			[]candidate{call(1, "x", 1), call(2, "y", 1), call(3, "y", 1)},
			limit.Admission{{Most: 100, PerKey: true, Room: map[string]int64{"x": 0, "y": 2}}},
			9,
			[]int64{2, 3},
			nil, nil,
			[]held{{"x", 1, 5}},
			"y", nil, "",
		},
		{
			"what is wrong is skipped by",
			[]candidate{wrongly(call(1, "x", 1)), call(2, "x", 1), other(call(3, "x", 1), 5, "nobody's"), call(4, "x", 101)},
			limit.Admission{{Most: 100, CountCost: true, Room: map[string]int64{"": 100}}},
			9,
			[]int64{2},
			[]int64{1, 4},
			nil, nil, "x", nil, "",
		},
		{
			"within a key by priority, then by age, whatever the task",
			[]candidate{call(5, "x", 1), call(6, "x", 1), other(call(4, "x", 1), 5, "mail"), other(call(9, "x", 1), 0, "http"), other(call(7, "x", 1), 5, "mail")},
			nil, 9,
			[]int64{9, 4, 5, 6, 7},
			nil, nil, nil, "x", nil, "",
		},
		{
			"the first that is unread is read, and no other",
			[]candidate{call(1, "x", 1), unread(call(2, "x", 1)), call(3, "x", 1), unread(call(4, "y", 1)), unread(call(5, "y", 1)), call(6, "z", 1), call(7, "z", 1)},
			nil, 9,
			[]int64{1, 4, 6, 7},
			nil, nil, nil, "z",
			[]int64{4},
			"x",
		},
		{
			"what is read and wrong is skipped by",
			[]candidate{unread(call(101, "x", 1)), call(2, "x", 1), unread(call(3, "x", 1)), call(4, "y", 1)},
			nil, 9,
			[]int64{2, 4},
			[]int64{101},
			nil, nil, "y",
			[]int64{101},
			"x",
		},
		{
			"an unread call keeps its place in its key",
			[]candidate{unread(call(1, "x", 1)), other(unread(call(2, "y", 1)), 0, "http"), call(3, "y", 1), call(4, "z", 1)},
			nil, 9,
			[]int64{1, 4},
			nil, nil, nil, "z",
			[]int64{1},
			"y",
		},
		{
			"what has to wait for units need not be read",
			[]candidate{unread(call(1, "x", 5)), unread(call(2, "y", 1)), unread(call(3, "z", 1))},
			limit.Admission{{Most: 100, PerKey: true, CountCost: true, Room: map[string]int64{"x": 4, "y": 4, "z": 4}}},
			9,
			[]int64{2},
			nil, nil,
			[]held{{"x", 5, 5}},
			"y",
			[]int64{2},
			"z",
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
			list := &candidates{snapshot: &snapshot{pools: r}, of: flows(c.candidates), head: &headroom{Admission: c.a, limits: limits}}
			var read []int64
			var s selection
			if err := list.choose(&s, []string{"x", "y", "z"}, c.want, func(call *backlog.Call) error {
				if call.Unread, read = false, append(read, call.ID); call.ID > 100 {
					call.Refusal = new("wrong")
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			ids := func(list []candidate) (ids []int64) {
				for _, c := range list {
					ids = append(ids, c.ID)
				}
				return ids
			}
			unread := ""
			if s.unread != nil {
				unread = *s.unread
			}
			got := []any{ids(s.chosen), ids(s.refused), s.stuck, s.blocked, s.chosen[len(s.chosen)-1].Key, read, unread}
			want := []any{c.chosen, c.refused, c.stuck, c.blocked, c.last, c.read, c.unread}
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
	entry := func(seq int64, place int32, id int64) backlog.Entry {
		return backlog.Entry{Seq: seq, Place: place, ID: id}
	}
	calls := func(entries ...backlog.Entry) (list []backlog.Call) {
		for _, e := range entries {
			list = append(list, backlog.Call{Entry: e})
		}
		return list
	}
	for _, c := range []struct {
		name     string
		f        flow
		head     int64
		consumed int32
		removed  int64
		skipped  []int64
	}{
		{"nothing", flow{calls: calls(entry(1, 3, 13))}, 1, 2, 0, nil},
		{"some are served", flow{calls: calls(entry(1, 3, 13), entry(1, 4, 14), entry(2, 1, 21)), served: 2}, 1, 4, 2, nil},
		{"into the next chunk", flow{calls: calls(entry(1, 3, 13), entry(2, 1, 21)), served: 2}, 2, 1, 2, nil},
		{
			"what has ended is skipped, as far as the first that waits",
			flow{
				calls: calls(entry(1, 4, 14), entry(2, 1, 21)), served: 1,
				skipped: []backlog.Entry{entry(1, 3, 13), entry(1, 5, 15), entry(2, 2, 22)},
			},
			1, 5, 3,
			[]int64{13, 15},
		},
		{"all have ended", flow{skipped: []backlog.Entry{entry(1, 3, 13), entry(2, 1, 21)}}, 2, 1, 2, []int64{13, 21}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.f.Head, c.f.Consumed = 1, 2
			left, skipped := c.f.advance()
			got := []any{left.From, left.Head, left.Consumed, left.Removed, skipped}
			if diff := cmp.Diff([]any{int64(1), c.head, c.consumed, c.removed, c.skipped}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
