package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
)

func (s *system) cancel(ids ...int64) {
	s.t.Helper()
	client, err := callqueue.New(s.pool)
	if err != nil {
		s.t.Fatal(err)
	}
	got, err := client.Cancel(context.Background(), ids...)
	if err != nil || len(got) != len(ids) {
		s.t.Fatalf("Cancel = %+v, %v", got, err)
	}
	for _, c := range got {
		if !c.Changed {
			s.t.Errorf("call %d was not cancelled: %+v", c.ID, c)
		}
	}
}

// Cancelling an attempt that has not started gives its unit back; one that has started keeps it.
func TestCancelUnits(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 2, time.Hour))
	s.calls("default", 5)
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{1,2}' FROM callq.call_open`)
	s.start(time.Hour, 1)
	s.cancel(1, 2, 3)
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{1,4}' FROM callq.call_open`)
	s.once(r)
	s.want(`SELECT status = 'new' FROM call_queue WHERE id = 5`)
	s.verify()
}

// What sweeps an attempt of a cancelled call charges and counts it, and leaves the status.
func TestCancelledAndLost(t *testing.T) {
	t.Parallel()
	for name, overdue := range map[string]string{
		"lost":              `UPDATE callq.call_open SET deadline = started_at`,
		"of an older epoch": `UPDATE callq.call_open SET epoch = 'older'`,
	} {
		for _, onLost := range []string{"retry", "fail"} {
			parallel(t, name+", "+onLost, func(_ *testing.T, s *system) {
				r := rules(sliding("api", 2, time.Hour))
				r.Queues[0].OnLost = onLost
				s.calls("default", 1)
				s.once(r)
				s.start(5 * time.Second)
				s.cancel(1)
				s.exec(overdue)
				s.once(r)
				s.want(`SELECT status = 'cancelled' AND failed_count = 1 AND failed_at IS NULL FROM call_queue`)
				s.want(`SELECT outcome = 'lost' AND charged->0->>'limit' = 'api' FROM call_attempts`)
				s.want(`SELECT sum(used) = 1 FROM callq.call_usage`)
				s.want(`SELECT count(*) = 0 FROM callq.call_open`)
				s.verify()
			})
		}
	}
}
