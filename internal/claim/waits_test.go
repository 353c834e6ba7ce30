package claim

import (
	"maps"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/usage"
)

// A minute has the longest wait that a claim saw in it, and what of an earlier one goes on in it.
func TestWaits(t *testing.T) {
	t.Parallel()
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return zero.Add(time.Duration(s) * time.Second) }
	w := waits{of: map[string]unitWait{}}
	saw := func(s int, room int64, next int) { // the limit's room, and in how many seconds the next unit comes free
		h := &headroom{now: at(s), nextLook: map[usage.Of]time.Time{}}
		for _, l := range []policy.LockedLimit{{Name: "api", Window: time.Minute}, {Name: "atonce"}, {Name: "api" + doorSuffix, Window: time.Second}} {
			h.limits = append(h.limits, l)
			h.Admission = append(h.Admission, limit.Quota{Room: map[string]int64{"": room}})
			h.nextLook[usage.Of{Limit: l.Name}] = at(s + next)
		}
		w.saw(h, []held{{cost: 1}}, at(s))
	}
	for _, step := range []struct {
		what string
		do   func()
		at   int
		want map[string]time.Duration
	}{
		{"no claim", func() {}, 0, nil},
		{"there is room", func() { saw(1, 1, 9) }, 60, nil},
		{"of two waits the longer", func() { saw(70, 0, 40); saw(115, 0, 2) }, 120, map[string]time.Duration{"api": 40 * time.Second}},
		{"it was over", func() {}, 180, nil},
		{"a long one", func() { saw(200, 0, 500) }, 240, map[string]time.Duration{"api": 500 * time.Second}},
		{"it goes on", func() {}, 300, map[string]time.Duration{"api": 460 * time.Second}},
		{"room came", func() { saw(310, 1, 0) }, 360, map[string]time.Duration{"api": 400 * time.Second}},
		{"then it is over", func() {}, 420, nil},
		{"the limit was opened", func() { saw(430, 0, 500); w.freed() }, 480, map[string]time.Duration{"api": 500 * time.Second}},
		{"likewise", func() {}, 540, nil},
	} {
		step.do()
		if got := w.take(at(step.at)); !maps.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
	}
}
