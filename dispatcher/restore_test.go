package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
)

// Where the data are set back under a dispatcher, as by a restore in place, what was left of the limits counts as used, as
// after a failover: what was given out since the backup is in no table. Whoever comes later finds it so.
//
//callq:guarantee 1
func TestRestoredInPlace(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 2, time.Hour))
	d := s.dispatcher(r)
	s.turn(d)
	backup := one[int64](s, `SELECT nextval('call_batch_seq')`)
	s.calls("default", 2)
	s.turn(d)
	s.start(time.Hour)
	s.want(`SELECT count(*) = 2 FROM call_open`)

	s.exec(`DELETE FROM call_open`)
	s.exec(`DELETE FROM call_queue`)
	s.exec(`SELECT setval('call_batch_seq', $1)`, backup)
	s.calls("default", 2)
	before := one[time.Time](s, `SELECT clock_timestamp()`)
	s.turn(d)
	s.want(`SELECT missing_until > $1::timestamptz + send_within + slack FROM call_limits`, before)
	s.turn(d)
	s.turn(s.another(r))
	s.want(`SELECT count(*) = 0 FROM call_open`)
	s.exec(`UPDATE call_limits SET missing_until = NULL`) // as if that time had passed
	s.turn(d)
	s.want(`SELECT count(*) = 2 FROM call_open`)
}

// Who learns of a restore after another has leaves alone what that one gave out since.
func TestRestoredUnderTwo(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 100, time.Hour))
	first, second := s.another(r), s.another(r)
	s.turn(first)
	backup := one[int64](s, `SELECT nextval('call_batch_seq')`)
	for range 10 {
		for _, d := range []*dispatcher.Dispatcher{first, second} {
			s.calls("default", 1)
			s.tick(d)
		}
	}
	s.exec(`DELETE FROM call_open`)
	s.exec(`DELETE FROM call_queue`)
	s.exec(`SELECT setval('call_batch_seq', $1)`, backup)
	s.calls("default", 2)
	s.turn(first)
	s.exec(`UPDATE call_limits SET missing_until = NULL`) // as if that time had passed
	s.turn(first)
	s.want(`SELECT count(*) = 2 FROM call_open`)
	s.start(time.Hour)
	s.calls("default", 2)
	s.turn(second)
	s.turn(second)
	s.want(`SELECT count(*) = 4 FROM call_open`)
	s.want(`SELECT count(*) = 0 FROM call_attempts`)
}
