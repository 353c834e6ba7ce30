package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// A standby that is promoted is a new epoch: what the old server gave out and had not ended is
// lost, and charged as of now; what was left of the limits counts as used until nothing else that the old server may
// have given out can count; an attempt of the old epoch can no longer start.
//
//callq:guarantee 1
func TestPromotion(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.alive(100)
	r := rules(sliding("api", 6, time.Second))
	s.calls("default", 5)
	s.once(r)
	s.start(time.Hour, 1, 2, 3)
	s.finish(1)
	s.want(`SELECT count(*) = 4 AND count(started_at) = 2 FROM callq.call_open`)
	unstarted := s.requests(nil, time.Second)
	epoch := one[string](s.system, `SELECT callq.epoch()`)
	s.pool.Close()

	s.promote(s.dir)
	s.pool = s.owner
	s.want(`SELECT callq.epoch() <> $1`, epoch)
	answers, err := ledger.Start(t.Context(), s.pool, "w", unstarted)
	if err != nil || answers[0].Refused == nil || answers[1].Refused == nil {
		t.Errorf("starts of the former epoch: %+v, %v", answers, err)
	}

	s.calls("default", 9)
	promoted := one[time.Time](s.system, `SELECT clock_timestamp()`)
	s.once(r)
	s.want(`SELECT count(*) = 0 FROM callq.call_open`)
	s.want(`SELECT count(*) = 4 AND bool_and(arrived_by > coalesce(started_at, $1)) FROM call_attempts WHERE outcome = 'lost'`, promoted)
	s.want(`SELECT missing_until > $1::timestamptz + send_within + slack FROM callq.call_limits`, promoted)
	s.exec(`UPDATE callq.call_limits SET missing_until = clock_timestamp() + interval '1 s'`) // as if most of that time had passed
	s.run(s.dispatcher(r).Run)
	s.eventually(`SELECT count(*) > 1 FROM callq.call_open`)
	s.want(`SELECT count(*) FILTER (WHERE o.claimed_at < l.missing_until) <= 1 FROM callq.call_open o, callq.call_limits l`) // as the one that is charged runs off
	s.verify()
}
