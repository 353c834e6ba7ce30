package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// A unit that comes free soon is given out already, and whoever starts its call is told to wait.
//
//callq:guarantee 1
func TestClaimsAhead(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.still()
	base, monotonic := one[string](s, `SELECT clock_timestamp()::text`), time.Now()
	zero := monotonic
	at := func(after time.Duration) {
		t.Helper()
		s.clockIs(fmt.Sprintf(`timestamptz '%s' + interval '%d ms'`, base, after.Milliseconds()))
		monotonic = zero.Add(after)
	}
	ahead := func(want int) {
		t.Helper()
		s.want(`SELECT count(*) = $1 AND coalesce(bool_and(claimed_at >= $2::timestamptz + interval '1 s'
			AND claimed_at BETWEEN handed_at AND handed_at + interval '200 ms'), true) FROM callq.call_open`, want, base)
	}
	s.alive(100)
	d := s.clocked(&monotonic)
	s.publish(rules(sliding("api", 5, time.Second)))
	s.calls("default", 15)
	s.poll(d)
	s.want(`SELECT count(*) = 5 AND bool_and(claimed_at = handed_at) FROM callq.call_open`)
	s.start(time.Minute)
	s.finish()
	at(890 * time.Millisecond)
	s.poll(d)
	ahead(0)
	at(990 * time.Millisecond)
	s.poll(d)
	ahead(5)

	requests := s.requests(nil, time.Minute)
	requests[0].Wait = limit.AheadMost / 2
	answers, err := ledger.Start(t.Context(), s.pool, "w", requests[:2])
	if err != nil {
		t.Fatal(err)
	}
	if got := answers[0].Wait; got != limit.AheadMost/2 {
		t.Errorf("of %s that the message says, it waits %s", limit.AheadMost/2, got)
	}
	if got := answers[1].Wait; got <= 0 || got > 20*time.Millisecond {
		t.Errorf("it waits %s, though no message says so, want what is left", got)
	}
	s.want(`SELECT bool_and(started_at >= claimed_at) FROM callq.call_open WHERE started_at IS NOT NULL`)

	at(-time.Minute) // set back: the worker waits no longer than a claim may be ahead
	if answers, err = ledger.Start(t.Context(), s.pool, "w", requests[2:3]); err != nil || answers[0].Wait != limit.AheadMost {
		t.Errorf("once the clock was set back it waits %+v, %v, want %s", answers, err, limit.AheadMost)
	}
}

// Once a pause returns, nothing starts: it waits for what was claimed ahead and has its start in the ledger.
//
//callq:guarantee 7
func TestPauseWaitsForWhatIsAhead(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.calls("default", 1)
	s.once(rules(sliding("api", 5, time.Second)))
	s.start(time.Minute)
	s.exec(`UPDATE callq.call_open SET started_at = clock_timestamp() + interval '90 ms'`)
	s.pause(ledger.Paused{What: "queue", Name: "default", Author: ledger.Author{Reason: "test", By: "test"}})
	s.want(`SELECT clock_timestamp() > started_at FROM callq.call_open`)
}
