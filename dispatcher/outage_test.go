package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
)

// While Postgres is away its workers cannot record what ended. They get the time to do so before what has passed its
// deadline meanwhile is taken for lost, and made again.
func TestNothingIsLostRightAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 2, time.Hour))
	s.calls("default", 1)
	now := time.Unix(0, 0)
	d, err := dispatcher.New(dispatcher.Config{Pool: s.pool, Redis: s.redis, Policy: r, Logger: s.log, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	s.turn(d.Patient())
	s.start(30 * time.Minute)
	s.exec(`UPDATE call_open SET started_at = started_at - interval '1 h', deadline = deadline - interval '1 h'`)

	s.exec(`ALTER FUNCTION callq_epoch() RENAME TO away`)
	if _, err := d.Step(t.Context(), true); err == nil {
		t.Fatal("a tick went well without Postgres")
	}
	s.exec(`ALTER FUNCTION away() RENAME TO callq_epoch`)
	now = now.Add(5 * time.Second)
	s.turn(d)
	s.want(`SELECT count(*) = 1 FROM call_open`)
	now = now.Add(2 * time.Second)
	s.turn(d)
	s.want(`SELECT outcome = 'lost' FROM call_attempts`)
}
