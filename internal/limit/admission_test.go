package limit

import (
	"maps"
	"testing"
)

func TestAdmission(t *testing.T) {
	t.Parallel()
	type call struct {
		key    string
		cost   int64
		ok     bool
		shared bool
	}
	cases := []struct {
		name  string
		a     Admission
		calls []call
	}{
		{"no limit", Admission{}, []call{{"", 1, true, false}, {"x", 99, true, false}}},
		{"in all", Admission{{Room: map[string]int64{"": 2}}}, []call{
			{"x", 5, true, false}, {"y", 1, true, false}, {"z", 1, false, true},
		}},
		{"per key", Admission{{PerKey: true, Room: map[string]int64{"x": 1, "": 1}}}, []call{
			{"x", 1, true, false}, {"x", 1, false, false}, {"", 1, true, false}, {"unknown", 1, false, false},
		}},
		{"by cost", Admission{{CountCost: true, Room: map[string]int64{"": 10}}}, []call{
			{"", 6, true, false}, {"", 5, false, true}, {"", 4, true, false}, {"", 1, false, true},
		}},
		{"all or none", Admission{
			{Room: map[string]int64{"": 9}},
			{PerKey: true, CountCost: true, Room: map[string]int64{"x": 3, "y": 3}},
		}, []call{
			{"x", 4, false, false}, {"x", 3, true, false}, {"x", 1, false, false}, {"y", 3, true, false},
		}},
		{"a shared refusal counts though the key's own refuses too", Admission{
			{Room: map[string]int64{"": 0}}, {PerKey: true, Room: map[string]int64{"x": 0}},
		}, []call{{"x", 1, false, true}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for i, call := range c.calls {
				before := make([]map[string]int64, len(c.a))
				for j, q := range c.a {
					before[j] = maps.Clone(q.Room)
				}
				_, ok, shared := c.a.Admit(call.key, call.cost)
				if ok != call.ok || shared != call.shared {
					t.Errorf("call %d: admitted %v, shared %v, want %v, %v", i, ok, shared, call.ok, call.shared)
				}
				for j, q := range c.a {
					if !ok && !maps.Equal(q.Room, before[j]) {
						t.Errorf("call %d: refused, and limit %d was charged: %v, before %v", i, j, q.Room, before[j])
					}
				}
			}
		})
	}
}

func TestMostAndExceeds(t *testing.T) {
	t.Parallel()
	a := Admission{
		{Most: 10, Room: map[string]int64{"": 7}},
		{Most: 5, MostOf: map[string]int64{"dear": 9, "cheap": 2}, PerKey: true, CountCost: true, Room: map[string]int64{"x": 3, "y": -2}},
	}
	for key, want := range map[string]int64{"x": 3, "y": 0, "z": 0} {
		if got := a.Most(key); got != want {
			t.Errorf("Most(%q) = %d, want %d", key, got, want)
		}
	}
	for _, c := range []struct {
		key  string
		cost int64
	}{{"x", 5}, {"dear", 9}, {"cheap", 2}} {
		if _, exceeds := a.Exceeds(c.key, c.cost); exceeds {
			t.Errorf("a call of %q that takes all of a limit, %d, exceeds it", c.key, c.cost)
		}
		if i, exceeds := a.Exceeds(c.key, c.cost+1); !exceeds || i != 1 {
			t.Errorf("Exceeds(%q, %d) = %d, %v, want 1, true", c.key, c.cost+1, i, exceeds)
		}
	}
}
