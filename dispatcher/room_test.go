package dispatcher_test

import (
	"fmt"
	"testing"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/policy"
)

// However many processes claim at once, no more is handed over than the workers can take up soon:
// together they fill that exactly. What ends fast lets them hand over more, up to twice that.
//
//callq:guarantee 8 13
func TestUnstartedAreBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		slots int
		want  int64
		more  int64
	}{{"no worker lives", 0, 200, 0}, {"the free slots", 20, 20, 20}} {
		parallel(t, c.name, func(t *testing.T, s *system) {
			if c.slots > 0 {
				s.alive(c.slots)
			}
			r := rules()
			names := make([]string, 8)
			for i := range names {
				names[i] = fmt.Sprint("q", i)
				r.Queues = append(r.Queues, queue(names[i]))
			}
			s.publish(r)
			dispatchers := make([]*dispatcher.Dispatcher, 8)
			for i := range dispatchers {
				dispatchers[i] = s.another(policy.Policy{})
				for range i { // so that each begins with another queue
					s.poll(dispatchers[i])
				}
			}
			for _, name := range names {
				s.calls(name, 250)
			}
			for round := range 5 {
				atOnce(t, dispatchers, (*dispatcher.Dispatcher).Tick)
				most := c.want
				if round > 0 {
					most += c.more
				}
				if got := one[int64](s, `SELECT count(*) FROM callq.call_open`); got < c.want || got > most {
					t.Errorf("round %d: %d attempts are open, want %d to %d", round, got, c.want, most)
				}
				s.exec(`TRUNCATE callq.call_open`)
				s.exec(`UPDATE call_queue SET status = 'new', attempts = 0, dispatched_at = NULL`)
			}
		})
	}
}

// A queue that asks for a label goes to workers that carry it, and waits while there are none; so
// does what is handed over again.
func TestQueueOnLabel(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules()
	r.Queues[0].On = "ip-a"
	r.Queues = append(r.Queues, queue("any"))
	s.alive(8)
	s.calls("default", 3)
	s.calls("any", 3)
	s.once(r)
	s.want(`SELECT count(*) = 3 AND bool_and(queue = 'any') FROM callq.call_open`)
	s.aliveIn("labelled", 8, "http")
	s.exec(`UPDATE callq.call_workers SET labels = '{eu,ip-a}' WHERE pool = 'labelled'`)
	s.once(r)
	s.want(`SELECT count(*) = 3 AND bool_and(pool = 'labelled') FROM callq.call_open WHERE queue = 'default'`)

	s.exec(`DELETE FROM callq.call_workers WHERE pool = 'labelled'`)
	s.exec(`UPDATE callq.call_open SET handed_at = clock_timestamp() - interval '6 s'`)
	s.once(r)
	s.want(`SELECT bool_and(pool = 'labelled') FROM callq.call_open WHERE queue = 'default'`) // not to the one without
	s.exec(`UPDATE callq.call_open SET handed_at = clock_timestamp() - interval '6 s'`)
	s.aliveIn("moved", 8, "http")
	s.exec(`UPDATE callq.call_workers SET labels = '{ip-a}' WHERE pool = 'moved'`)
	s.once(r)
	s.want(`SELECT bool_and(pool = 'moved' AND redeliveries > 0) FROM callq.call_open WHERE queue = 'default'`)
	s.verify()
}
