package limit

import (
	"errors"
	"time"
)

// FixedWindow allows at most Units in each window of the calendar.
const FixedWindow Algorithm = "fixed_window"

var errMonths = errors.New("mo needs algorithm: fixed_window")

// fixedWindow embeds what holds if its time zone is unknown: a window no shorter than any of the calendar's is stricter.
type fixedWindow struct{ slidingWindow }

func (fixedWindow) traits() Traits {
	return Traits{Name: FixedWindow, Returns: Together, Timezone: true, Spread: true}
}

func (fixedWindow) validate(w written, s Shape) (Rate, error) {
	c, err := ParseCalendar(w.window, s.Timezone)
	if err != nil {
		return Rate{}, err
	}
	return Rate{w.units, c.longest(), Shape{Algorithm: FixedWindow, Period: c.String(), Timezone: s.Timezone}}, nil
}

func (f fixedWindow) next(u Use, now time.Time, gained time.Duration) time.Time {
	if c, err := u.Rate.calendar(); err == nil {
		return c.End(now.Add(-c.apart() - gained)).Add(c.apart() + gained)
	}
	return f.slidingWindow.next(u, now, gained)
}

func (f fixedWindow) since(r Rate, now time.Time, gained time.Duration) time.Time {
	if c, err := r.calendar(); err == nil { // the API may still be in the window before
		return c.Start(now.Add(-c.apart() - gained)).Add(-c.apart())
	}
	return f.slidingWindow.since(r, now, gained)
}

func (f fixedWindow) passed(r Rate, until time.Time, gained time.Duration) time.Time {
	if c, err := r.calendar(); err == nil {
		return c.End(until.Add(c.apart())).Add(c.apart() + gained)
	}
	return f.slidingWindow.passed(r, until, gained)
}

func (fixedWindow) ahead(Rate) time.Duration { return 0 }

func (f fixedWindow) bucket(r Rate) time.Duration {
	if c, err := r.calendar(); err == nil {
		return c.bucket()
	}
	return f.slidingWindow.bucket(r)
}

func (r Rate) calendar() (Calendar, error) { return ParseCalendar(r.Period, r.Timezone) }

// Later is when the window begins that is so many after the one that begins at t, or about then if they are many.
func (r Rate) Later(t time.Time, windows float64) time.Time {
	c, err := r.calendar()
	for ; err == nil && windows >= 1 && windows < 10_000; windows-- {
		t = c.End(t.Add(-c.apart())).Add(c.apart())
	}
	return t.Add(time.Duration(windows * float64(r.Window)))
}
