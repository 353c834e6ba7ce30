package limit

import (
	"testing"
	"time"
)

// Of what may be missing nothing is given out again while it may count; what runs off of what is known is.
//
//callq:guarantee 1
func TestMissing(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	bucket, err := Parse("1/1s", TokenBucket, 10, "")
	if err != nil {
		t.Fatal(err)
	}
	month, err := Parse("10/1mo", FixedWindow, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	hour, atOnce := Rate{Units: 10, Window: time.Hour}, Rate{Units: 10}
	unknown := now.Add(time.Hour + 3600*time.Millisecond) // where no unit says when it comes free
	of := func(known, former int64) *Missing {
		return &Missing{Until: now.Add(5 * time.Second), KnownAt: &now, Known: known, Former: former}
	}
	for name, c := range map[string]struct {
		use  Use
		at   time.Duration
		room int64
		next time.Time
	}{
		"room left":           {Use{Rate: hour, Occupied: 4, Missing: of(4, 0)}, 0, 0, unknown},
		"known has run off":   {Use{Rate: hour, Occupied: 1, Missing: of(4, 0)}, 0, 3, unknown},
		"more than is known":  {Use{Rate: hour, Occupied: 6, Missing: of(4, 0)}, 0, 0, unknown},
		"what was open":       {Use{Rate: hour, Occupied: 6, Missing: of(4, 5)}, 0, 3, unknown},
		"a rate lowered":      {Use{Rate: hour, Occupied: 9, Missing: of(12, 2)}, 0, 1, unknown},
		"at once":             {Use{Rate: atOnce, Missing: of(0, 0)}, 0, 0, now.Add(5 * time.Second)},
		"a month":             {Use{Rate: month, Missing: of(2, 0)}, 0, 2, time.Date(2026, 12, 1, 0, 1, 0, 0, time.UTC)},
		"a bucket":            {Use{Rate: bucket, Missing: of(0, 0)}, 0, 0, now.Add(6001 * time.Millisecond)},
		"a bucket that fills": {Use{Rate: bucket, Missing: of(0, 0)}, 8500 * time.Millisecond, 3, now.Add(8500 * time.Millisecond)},
		"a bucket that was drawn on": {Use{
			Rate: bucket, Missing: of(0, 0), Charges: []Charge{{now, 9}, {now.Add(7 * time.Second), 1}, {now.Add(2 * time.Second), 1}},
		}, 8500 * time.Millisecond, 1, now.Add(8500 * time.Millisecond)},
		"a bucket of which nothing is known": {Use{Rate: bucket, Missing: &Missing{Until: now}}, time.Minute, 0, time.Time{}},
	} {
		if got := c.use.Room(now.Add(c.at), 0); got != c.room {
			t.Errorf("%s: room for %d, want %d", name, got, c.room)
		}
		if got := c.use.NextLook(now.Add(c.at), 0); !c.next.IsZero() && got.Sub(c.next).Abs() > time.Millisecond {
			t.Errorf("%s: next at %s, want %s", name, got, c.next)
		}
	}
}

// What is missing counts exactly until it has passed, and of a fixed window not in one that begins later.
func TestMissingPasses(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	day, err := Parse("10/1d", FixedWindow, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Rate{{Units: 1, Window: time.Hour}, {Units: 1}, day} {
		for _, gained := range []time.Duration{0, time.Minute} {
			passed := r.Passed(until, gained)
			if MissingAt(r, &until, nil, passed, gained) != nil || MissingAt(r, &until, nil, passed.Add(-time.Microsecond), gained) == nil {
				t.Errorf("%s: it does not pass at %s", r, passed)
			}
		}
	}
	begun := time.Date(2026, 11, 22, 12, 5, 0, 0, time.UTC)
	if yesterday := begun.AddDate(0, 0, -1); MissingAt(day, &yesterday, nil, begun, 0) != nil {
		t.Error("a day needs more than began with it")
	}
}
