package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

func leaky(units int64) policy.Limit {
	return policy.Limit{Name: "api", Rate: limit.Rate{Units: 1, Window: time.Second / time.Duration(units), Shape: limit.Shape{Algorithm: limit.LeakyBucket}}}
}

// A claim of a narrow limit gives one worker a run, and nothing more of the limit to anybody until it ends.
//
//callq:guarantee 1
func TestRunIsClaimed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.calls("default", 500)
	s.once(rules(leaky(100)))
	s.want(`SELECT count(*) = 99 AND count(DISTINCT message_no) = 1 AND bool_and(rooms = '{1}' AND gaps = '{10.01 ms}' AND send_within = '600 ms')
		FROM callq.call_open`)
	s.once(rules(leaky(100)))
	s.want(`SELECT count(*) = 99 FROM callq.call_open`)
}

// A run of a worker that died, or whose message was lost, goes back uncharged; it is not handed over again.
func TestRunGoesBack(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.calls("default", 50)
	s.once(rules(leaky(100)))
	s.want(`SELECT count(*) > 40 FROM callq.call_open WHERE rooms IS NOT NULL`)
	s.exec(`UPDATE callq.call_open SET token = 1, worker = 'gone', handed_at = handed_at - interval '6 seconds'`)
	s.once(rules())
	s.want(`SELECT count(*) = 0 FROM callq.call_open WHERE rooms IS NOT NULL AND worker = 'gone'`)
	s.want(`SELECT count(*) > 40 AND bool_and(outcome = 'not_sent' AND charged = '[]') FROM call_attempts`)
	s.want(`SELECT bool_and(redeliveries = 0) IS NOT FALSE FROM callq.call_open`)
	s.verify()
}

// Each key of a limit per key has a run of its own; a limit that all keys share puts them in one.
func TestRunsPerKey(t *testing.T) {
	t.Parallel()
	each := leaky(50)
	each.PerKey = true
	for name, c := range map[string]struct {
		limits []policy.Limit
		want   string
	}{
		"each":            {[]policy.Limit{each}, `SELECT count(DISTINCT message_no) = 2 AND bool_and(rooms = '{1}') FROM callq.call_open`},
		"beside a window": {[]policy.Limit{each, sliding("all", 30, time.Hour)}, `SELECT count(*) = 30 AND bool_and(rooms IN ('{1,NULL}', '{NULL,1}')) FROM callq.call_open`},
		"beside a shared one": {
			[]policy.Limit{each, {Name: "all", Rate: limit.Rate{Units: 2, Window: 40 * time.Millisecond}}},
			`SELECT count(DISTINCT message_no) = 1 AND bool_and(rooms IN ('{1,2}', '{2,1}')) FROM callq.call_open`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.alive(100)
			s.keyed("a", 40)
			s.keyed("b", 40)
			s.once(rules(c.limits...))
			s.want(c.want)
		})
	}
}
