package dispatcher

import (
	"maps"
	"testing"

	"github.com/callq/callq/internal/limit"
	"github.com/google/go-cmp/cmp"
)

func TestServe(t *testing.T) {
	t.Parallel()
	call := func(id int64, key string, cost int64) candidate {
		return candidate{ID: id, Key: key, Cost: cost, Task: "http"}
	}
	wrong := "wrong"
	all := func(n int64) limit.Quota { return limit.Quota{Rate: 100, Room: map[string]int64{"": n}} }
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
			nil, &held{"x", 1}, nil, "y",
		},
		{
			"small calls do not pass a large one",
			[]candidate{call(1, "x", 60), call(2, "x", 50), call(3, "y", 10), call(4, "y", 1)},
			limit.Admission{{Rate: 100, CountCost: true, Room: map[string]int64{"": 100}}},
			9,
			[]int64{1, 3},
			nil, &held{"x", 50}, nil, "y",
		},
		{
			"a key without room keeps nobody else",
			[]candidate{call(1, "x", 1), call(2, "y", 1), call(3, "y", 1)},
			limit.Admission{{Rate: 100, PerKey: true, Room: map[string]int64{"x": 0, "y": 2}}},
			9,
			[]int64{2, 3},
			nil, nil,
			[]held{{"x", 1}},
			"y",
		},
		{
			"what is wrong is passed by",
			[]candidate{{ID: 1, Key: "x", Refusal: &wrong}, call(2, "x", 1), {ID: 3, Key: "x", Task: "nobody's"}, call(4, "x", 101)},
			limit.Admission{{Rate: 100, CountCost: true, Room: map[string]int64{"": 100}}},
			9,
			[]int64{2},
			[]int64{1, 4},
			nil, nil, "x",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := &roster{pools: []*pool{{Name: "http", Tasks: []string{"http"}, room: 100}}}
			limits := make([]lockedLimit, len(c.a))
			for i := range c.a {
				c.a[i].Room = maps.Clone(c.a[i].Room)
			}
			s := serve([]string{"x", "y", "z"}, c.candidates, limits, c.a, r, c.want)
			ids := func(list []candidate) (ids []int64) {
				for _, c := range list {
					ids = append(ids, c.ID)
				}
				return ids
			}
			got := []any{ids(s.chosen), ids(s.refused), s.stuck, s.blocked, s.last}
			want := []any{c.chosen, c.refused, c.stuck, c.blocked, c.last}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(held{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(s.pools) != len(s.chosen) || r.room() != 100-len(s.chosen) {
				t.Errorf("%d chosen, %d pools, room %d", len(s.chosen), len(s.pools), r.room())
			}
		})
	}
}
