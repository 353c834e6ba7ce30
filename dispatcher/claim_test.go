package dispatcher_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
)

// Sixteen processes that tick at once give out exactly what the limits allow: not a unit more,
// and, since they wait for each other's locks, not one less.
func TestClaimRace(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name  string
		rules dispatcher.Rules
		calls map[string]int
		want  map[string]int64 // by limit
	}{
		{
			"two limits on one queue",
			dispatcher.Rules{
				Limits: []dispatcher.LimitRule{sliding("wide", 100, time.Hour), sliding("narrow", 60, time.Hour)},
				Queues: []dispatcher.QueueRule{queue("default", "wide", "narrow")},
			},
			map[string]int{"default": 150},
			map[string]int64{"wide": 60, "narrow": 60},
		},
		{
			"two queues that share one limit",
			dispatcher.Rules{
				Limits: []dispatcher.LimitRule{sliding("a", 70, time.Hour), sliding("shared", 100, time.Hour), sliding("z", 60, time.Hour)},
				Queues: []dispatcher.QueueRule{queue("one", "a", "shared"), queue("two", "shared", "z")},
			},
			map[string]int{"one": 150, "two": 150},
			map[string]int64{"shared": 100},
		},
	}
	for _, c := range cases {
		parallel(t, c.name, func(t *testing.T, s *system) {
			s.alive(1000) // room for all
			for name, n := range c.calls {
				s.calls(name, n)
			}
			s.publish(c.rules)
			dispatchers := make([]*dispatcher.Dispatcher, 16)
			for i := range dispatchers {
				dispatchers[i] = s.another(c.rules)
			}
			for round := range 5 {
				gate := make(chan struct{})
				var wg sync.WaitGroup
				for _, d := range dispatchers {
					wg.Go(func() {
						<-gate
						if err := d.Once(context.Background()); err != nil {
							t.Error(err)
						}
					})
				}
				close(gate)
				wg.Wait()
				for limit, units := range c.want {
					if got := s.used(limit); got != units {
						t.Fatalf("round %d: limit %s gave out %d units, want %d", round, limit, got, units)
					}
				}
				s.verify()
				s.exec(`TRUNCATE call_open`)
				s.exec(`UPDATE call_queue SET status = 'new', attempts = 0`)
			}
		})
	}
}
