package admin

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The verdict names the worst first, in words that fit the numbers, and says what to do where there is something.
func TestVerdict(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	soon := now.Add(3 * time.Second)
	healthy := func() *Status {
		return &Status{
			At: now, Dispatchers: []string{"d"}, Workers: []Worker{{ID: "w", Live: true}},
			Queues: []Queue{{Name: "mail", Configured: true, Limits: []string{"smtp"}}, {Name: "pay", Configured: true, Limits: []string{"bank"}}},
			Limits: []Limit{
				{Name: "bank", Queues: []string{"pay"}, LimitState: LimitState{State: "open", Room: 5}, limitFacts: limitFacts{now: now}},
				{Name: "smtp", Queues: []string{"mail"}, LimitState: LimitState{State: "open", Room: 5}, limitFacts: limitFacts{now: now}},
			},
		}
	}
	for name, c := range map[string]struct {
		change   func(*Status)
		level    Level
		headline string
		points   []string
	}{
		"nothing":    {func(*Status) {}, OK, "All is well; nothing waits", nil},
		"one waits":  {func(s *Status) { s.Queues[0].Due = 1 }, OK, "All is well; 1 call waits", nil},
		"full, idle": {func(s *Status) { s.Limits[0].Room = 0 }, OK, "All is well; nothing waits", nil},
		"full": {
			func(s *Status) { s.Queues[1].Due, s.Limits[0].Room, s.Limits[0].OpensAt = 2618, 0, &soon },
			Note, "1 limit holds calls back; 2,618 calls wait",
			[]string{"limit bank is full, next unit in 3 s; 2,618 calls wait for it: callq limits forecast bank"},
		},
		"refused and paused": {
			func(s *Status) {
				s.Queues[0].Due, s.Queues[1].Due = 1, 1
				s.Limits[0].State, s.Limits[0].ShutUntil, s.Limits[1].State = "refused: 429", &soon, "paused: holidays"
			},
			Note, "2 limits hold calls back; 2 calls wait",
			[]string{
				"limit bank is refused: 429 until 2026-11-28 12:00:03Z; 1 call waits for it: callq limits advise bank",
				"limit smtp is paused: holidays; 1 call waits for it: callq limits resume smtp",
			},
		},
		"grows": {
			func(s *Status) {
				s.Queues[0].Due, s.trends = 700, []trend{{"mail", 100, now.Add(-11 * time.Minute)}, {"pay", 0, now.Add(-11 * time.Minute)}}
			},
			Note, "1 thing to know; 700 calls wait",
			[]string{"queue mail grows by 60 a minute: 700 calls are due: callq queues forecast mail"},
		},
		"verified": {func(s *Status) { s.Verified = &Verified{At: now} }, OK, "All is well; nothing waits", nil},
		"a rule did not hold": {
			func(s *Status) { s.Verified = &Verified{At: now, Problems: 1} }, Problem, "1 problem; nothing waits",
			[]string{"the scheduled verify of 2026-11-28 12:00:00Z found 1 problem: a limit may have been exceeded, or the ledger changed by hand: callq verify"},
		},
		"that is long ago": {func(s *Status) { s.Verified = &Verified{At: now.Add(-9 * 24 * time.Hour), Problems: 1} }, OK, "All is well; nothing waits", nil},
		"what came just now": {
			func(s *Status) { s.Queues[0].Due, s.trends = 700, []trend{{"mail", 100, now.Add(-2 * time.Minute)}} },
			OK, "All is well; 700 calls wait", nil,
		},
		"nobody": {
			func(s *Status) { s.Workers, s.Queues[1].Due, s.Limits[0].Room = nil, 1, 0 },
			Problem, "1 problem; 1 call waits",
			[]string{"no worker is alive: nothing is sent: callq serve, or callq work", "limit bank is full; 1 call waits for it: callq limits forecast bank"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := healthy()
			c.change(s)
			v := s.judge()
			var points []string
			for _, p := range v.Points {
				points = append(points, strings.TrimSuffix(p.What+": "+p.Fix, ": "))
			}
			if v.Level != c.level || v.Headline != c.headline || !slices.Equal(points, c.points) {
				t.Errorf("%s, %q, %q\nwant %s, %q, %q", v.Level, v.Headline, points, c.level, c.headline, c.points)
			}
		})
	}
}
