package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
)

// An API that refuses several calls that came together has those that follow go evenly: in one run, once the last has gone long enough
// ago, and as many as the window has room for. One refusal teaches nothing: others may use the API's limit.
func TestEvenly(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 5, 40*time.Second))
	s.calls("default", 3)
	s.once(r)
	s.start(time.Minute)
	s.shut("", 1, 0)
	s.want(`SELECT even_until IS NULL FROM callq.call_limits`)
	s.shut("", 2, time.Second)
	s.want(`SELECT even_until BETWEEN clock_timestamp() + interval '59 min' AND clock_timestamp() + interval '1 h' FROM callq.call_limits`)
	for call := range int64(3) {
		s.end(call+1, callqueue.OutcomeRefused)
	}
	s.exec(`DELETE FROM callq.call_pauses`)
	s.once(r) // one each 10 s
	s.want(openIDs, "{}")
	s.exec(`UPDATE callq.call_usage SET bucket = bucket - interval '11 s'`)
	s.once(r)
	s.want(openIDs, "{1}")
	s.once(r)
	s.want(openIDs, "{1}")
}

// Narrower windows send what they have room for, in runs of two seconds.
func TestEvenRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		even string
		want string
	}{
		"evenly":      {"1 min", `SELECT count(*) = 50 AND count(DISTINCT message_no) = 1 AND bool_and(rooms = '{1}' AND gaps[1] BETWEEN '20 ms' AND '21 ms') FROM callq.call_open`},
		"as it comes": {"-1 s", `SELECT count(*) = 50 AND bool_and(rooms IS NULL) FROM callq.call_open`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.alive(100)
			r := rules(sliding("api", 50, time.Second))
			s.calls("default", 100)
			s.publish(r)
			s.exec(`UPDATE callq.call_limits SET even_until = clock_timestamp() + $1::interval`, c.even)
			s.once(r)
			s.want(c.want)
			s.once(r)
			s.want(c.want)
		})
	}
}
