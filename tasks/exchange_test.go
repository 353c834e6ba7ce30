package tasks

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
)

// What workers tell one another bounds a request's place from below and its answer from above, whatever each statement takes. No
// step of Postgres's clock between two exchanges matters.
//
//callq:guarantee 1
func TestClockReading(t *testing.T) {
	t.Parallel()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	zero, pg := time.Now(), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	// Postgres's clock shows pg at some moment between 100 and 130 ms.
	c := clockReading{at: pg, sent: zero.Add(ms(100)), received: zero.Add(ms(130))}
	told := c.told(httptask.Answered{Host: "api:80", Written: zero.Add(ms(20)), Answered: zero.Add(ms(50))})
	if want := (ledger.Answered{Host: "api:80", Written: pg.Add(ms(-110)), Answered: pg.Add(ms(-50))}); told != want {
		t.Errorf("told %v, want %v", told, want)
	}
	heard := c.heard(told)
	if want := (httptask.Answered{Host: "api:80", Written: zero.Add(ms(-10) - ledger.ClockMargin), Answered: zero.Add(ms(80))}); heard != want {
		t.Errorf("heard %v, want %v", heard, want)
	}
}
