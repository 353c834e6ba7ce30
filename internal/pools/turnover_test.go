package pools

import (
	"testing"
	"time"
)

// How many end soon is told from how many did of late: what was handed over and is no longer open. At first nothing is known, and
// what others hand over makes it less. Slow calls that end are none, however the looks fall.
func TestTurnover(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	type step struct {
		at                 time.Duration
		started, unstarted int
		want               int
		handed             int // after that look
	}
	slow := []step{{0, 0, 0, 0, 4}}
	for at := 3 * time.Second; at < time.Minute; at += 3 * time.Second / 4 {
		slow = append(slow, step{at, 3, 0, 0, 1}, step{at + 20*ms, 4, 0, 0, 0})
	}
	for name, steps := range map[string][]step{
		"slow calls":           slow,
		"nothing ended":        {{0, 0, 0, 0, 4}, {10 * ms, 4, 0, 0, 0}, {time.Second, 4, 0, 0, 0}},
		"short calls":          {{0, 0, 0, 0, 40}, {100 * ms, 0, 0, 20, 40}, {200 * ms, 20, 20, 10, 0}, {400 * ms, 0, 0, 10, 0}, {1100 * ms, 0, 0, 2, 0}, {1400 * ms, 0, 0, 0, 0}},
		"a burst":              {{0, 0, 0, 0, 20}, {time.Millisecond, 0, 0, 10, 0}},
		"what was open before": {{0, 30, 30, 0, 0}, {100 * ms, 20, 0, 20, 0}},
		"seldom looked at":     {{0, 0, 0, 0, 400}, {10 * time.Second, 0, 0, 2, 0}},
		"slow ones follow":     {{0, 0, 0, 0, 40}, {100 * ms, 0, 0, 20, 40}, {1100 * ms, 40, 0, 0, 0}},
		"others hand over":     {{0, 0, 0, 0, 4}, {10 * ms, 8, 0, 0, 0}, {100 * ms, 6, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen turnover
			begin := time.Now()
			for _, s := range steps {
				p := &Pool{Name: "p", Started: s.started, Unstarted: s.unstarted}
				if seen.count([]*Pool{p}, begin.Add(s.at)); p.Soon != s.want {
					t.Errorf("after %s %d end soon, want %d", s.at, p.Soon, s.want)
				}
				seen.handed("p", s.handed)
			}
		})
	}
}
