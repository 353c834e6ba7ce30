package sim

import (
	"fmt"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
)

// setting is what a seed draws once: the rules, how much there is to do and how much goes wrong.
type setting struct {
	rules       dispatcher.Rules
	window      time.Duration // the one that sets the pace
	longest     time.Duration
	span        time.Duration // how long there are faults and producers; then the world heals
	tick        time.Duration // of the dispatchers
	calls       int
	keys        []string
	own         bool // some calls have a handler of their own
	dispatchers int
	workers     int
	slots       int
	trouble     float64 // 1: as many faults as usual
	loss        float64 // of parcels, statements and answers, each
	apiErrors   float64
}

func draw(w *world) setting {
	s := setting{
		window:      pick(w, time.Second, time.Second, 2*time.Second, 5*time.Second, 10*time.Second, 30*time.Second, time.Minute, 10*time.Minute, time.Hour, 6*time.Hour),
		dispatchers: w.intBetween(2, 3),
		workers:     w.intBetween(2, 3),
		slots:       pick(w, 1, 2, 4, 8, 16, 32),
		trouble:     pick(w, 0, 0.3, 1, 1, 2, 3),
		loss:        pick(w, 0, 0.02, 0.1),
		apiErrors:   pick(w, 0, 0.05, 0.3),
		own:         w.chance(0.4),
		keys:        []string{""},
	}
	if w.mutant.rough {
		s.window = pick(w, time.Second, 2*time.Second, 5*time.Second, time.Minute)
		s.trouble, s.loss, s.apiErrors = 2, 0.1, 0.3
	}
	s.span = min(max(time.Duration(w.intBetween(4, 12))*s.window, 30*time.Second), 24*time.Hour)
	s.tick = max(time.Second, s.span/50)
	if w.chance(0.5) {
		s.keys = []string{"a", "b", "c", ""}[:w.intBetween(2, 4)]
	}
	s.drawLimits(w)
	s.drawQueues(w)
	for _, l := range s.rules.Limits {
		s.longest = max(s.longest, l.Rate.Window)
	}
	main := s.rules.Limits[0]
	perWindow := float64(main.Rate.Units)
	if main.PerKey {
		perWindow *= float64(len(s.keys))
	}
	if main.CountCost {
		perWindow /= 2
	}
	s.calls = int(perWindow * float64(s.span/s.window) * (0.4 + 0.8*w.rng.Float64()))
	s.calls = min(max(s.calls, 5), 400)
	return s
}

func (s *setting) drawLimits(w *world) {
	main := dispatcher.LimitRule{
		Name: "main", Rate: limit.Rate{Units: pick[int64](w, 1, 2, 3, 5, 10, 20, 40), Window: s.window},
		PerKey: w.chance(0.3), CountCost: w.chance(0.25), Anchor: pick(w, "", "", limit.AnchorStart, limit.AnchorFinish),
	}
	if w.chance(0.3) {
		main.Slack = w.between(s.window/50, s.window/4).Round(time.Millisecond)
		main.SendWithin = min(w.between(s.window/50, s.window/4).Round(time.Millisecond), 5*time.Second)
	}
	s.rules.Limits = append(s.rules.Limits, main)
	if w.chance(0.5) {
		second := dispatcher.LimitRule{
			Name: "long", PerKey: w.chance(0.3),
			Rate: limit.Rate{Units: main.Rate.Units * int64(w.intBetween(2, 4)), Window: s.window * time.Duration(w.intBetween(2, 6))},
		}
		s.rules.Limits = append(s.rules.Limits, second)
	}
	if w.chance(0.4) {
		s.rules.Limits = append(s.rules.Limits, dispatcher.LimitRule{
			Name: "atonce", PerKey: w.chance(0.2), Rate: limit.Rate{Units: int64(w.intBetween(1, 6))},
		})
	}
}

// drawQueues makes one queue under all limits and, sometimes, a second that shares the first.
func (s *setting) drawQueues(w *world) {
	var all []string
	for _, l := range s.rules.Limits {
		all = append(all, l.Name)
	}
	for i := range w.intBetween(1, 2) {
		low := w.between(50*time.Millisecond, max(s.window/10, 100*time.Millisecond)).Round(time.Millisecond)
		q := dispatcher.QueueRule{
			Name: fmt.Sprintf("q%d", i), Limits: all, MaxAttempts: w.intBetween(1, 5), BackoffMin: low,
			BackoffMax: low * time.Duration(w.intBetween(1, 10)), OnLost: pick(w, "retry", "retry", "fail"),
			Timeout: w.between(500*time.Millisecond, min(max(s.window/2, 2*time.Second), time.Minute)).Round(time.Millisecond),
		}
		if i > 0 {
			q.Limits = all[:w.intBetween(1, len(all))]
		}
		s.rules.Queues = append(s.rules.Queues, q)
	}
}

func (s *setting) queue(name string) dispatcher.QueueRule {
	for _, q := range s.rules.Queues {
		if q.Name == name {
			return q
		}
	}
	return dispatcher.QueueRule{}
}

// slack is what the travelling of a queue's requests keeps to.
func (s *setting) slack(queue string) time.Duration {
	least := time.Minute
	for _, name := range s.queue(queue).Limits {
		for _, l := range s.rules.Limits {
			if l.Name != name {
				continue
			}
			// Said by docs/design.md, not taken from internal/limit.
			slack := min(max(l.Rate.Window/20, 100*time.Millisecond), time.Minute)
			if l.Slack > 0 {
				slack = l.Slack
			}
			least = min(least, slack)
		}
	}
	return least
}

// mayOwn says whether there are handlers of one's own: a limit that is anchored at the start wants
// the write gate.
func (s *setting) mayOwn() bool {
	for _, l := range s.rules.Limits {
		if l.Anchor == limit.AnchorStart {
			return false
		}
	}
	return s.own
}
