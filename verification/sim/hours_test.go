package sim

import (
	"fmt"
	"strings"
	"time"
)

// pulse is hours that open again and again, so that worlds of any length meet their ends: for some minutes of each
// so many of a day.
type pulse struct{ every, open int }

// drawHours writes hours for a queue; the setting keeps what they mean.
func (s *setting) drawHours(w *world) string {
	p := pulse{every: max(2, int(s.stretch/time.Minute)/w.intBetween(1, 6))}
	if w.mutant.late {
		p.every = 2
	}
	p.every = min(p.every, 12*60)
	p.open = w.intBetween(1, p.every-1)
	var spans []string
	for from := 0; from < 24*60; from += p.every {
		to := min(from+p.open, 24*60)
		spans = append(spans, fmt.Sprintf("%02d:%02d-%02d:%02d", from/60, from%60, to/60, to%60))
	}
	text := strings.Join(spans, ", ")
	if s.pulses == nil {
		s.pulses = map[string]pulse{}
	}
	s.pulses[text] = p
	return text
}

// closed says whether a queue is outside of its hours at a time of Postgres's.
func (s *setting) closed(queue string, at time.Time) bool {
	p, some := s.pulses[s.queue(queue).Hours]
	minute := at.UTC().Hour()*60 + at.UTC().Minute()
	return some && minute%p.every >= p.open
}

// openAll takes the hours away, which would keep calls waiting for long.
func (w *world) openAll() {
	rules := w.set.rules
	rules.Queues = nil
	some := false
	for _, q := range w.set.rules.Queues {
		some = some || q.Hours != ""
		q.Hours = ""
		rules.Queues = append(rules.Queues, q)
	}
	if some {
		w.publish(rules)
	}
}
