package dispatcher_test

import (
	"context"
	"testing"
	"time"
)

// The history has how long calls that a claim left waiting have to wait for a unit, and nothing of limits that have some, or of which
// nobody knows.
func TestHistoryHasWaits(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.calls("default", 5)
	s.keyed("k", 3)
	r := rules(byCost("hourly", 6, time.Hour), byCost("plenty", 600, time.Hour), perKey("each", 4, 2*time.Hour), byCost("atonce", 6, 0))
	s.publish(r)
	d := s.another(r)
	s.turn(d)
	s.start(time.Hour)
	s.finish()
	s.turn(d)
	d.NoteHistory(s.t.Context())
	const hour = 3_600_000
	s.want(`SELECT count(*) = 4 FROM callq.call_limit_history`)
	s.want(`SELECT bool_and(CASE limit_name WHEN 'hourly' THEN next_unit BETWEEN $1::int * 0.95 AND $1 * 1.05 WHEN 'each' THEN next_unit > $1 ELSE next_unit IS NULL END)
		FROM callq.call_limit_history`, hour)
	if s.t.Failed() {
		t.Log(one[string](s, `SELECT string_agg(limit_name || ' ' || coalesce(next_unit::text, '-'), ', ') FROM callq.call_limit_history`))
	}
}

// Nobody waits for a lock at the end of a minute: a dispatcher that stands by notes it later, when the one that claims has.
func TestStandbyLeavesHistory(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.calls("default", 1)
	r := rules(sliding("api", 1, time.Hour))
	s.publish(r)
	d := s.another(r)
	s.turn(d)
	d.StandBy()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	d.NoteHistory(ctx)
	s.want(`SELECT count(*) = 0 FROM callq.call_meta WHERE name = 'history'`)
}
