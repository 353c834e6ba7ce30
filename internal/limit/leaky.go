package limit

import (
	"fmt"
	"time"
)

// LeakyBucket allows one after another, evenly.
const LeakyBucket Algorithm = "leaky_bucket"

const minSpacing = time.Millisecond

// MostTolerance is the longest tolerance.
const MostTolerance = time.Minute

// leakyBucket is a sliding window of one unit each spacing s. With a tolerance t it is one of b = 1 + t/s units, rounded down, each
// b x s. That has at most b + T/s in any time T, and an API that lets a request come too early by t allows 1 + t/s + T/s.
type leakyBucket struct{ slidingWindow }

func (leakyBucket) traits() Traits {
	return Traits{Name: LeakyBucket, Tolerance: true, OneRate: true, OneByOne: true}
}

func (leakyBucket) validate(w written, s Shape) (Rate, error) {
	if s.Tolerance < 0 || s.Tolerance > MostTolerance {
		return Rate{}, fmt.Errorf("a tolerance of %s is not from 0 to %s", s.Tolerance, MostTolerance)
	}
	r, err := w.rate()
	if s.Timezone != "" && !w.each { // it spreads windows of the calendar, and some are longer than others
		var c Calendar
		c, err = ParseCalendar(w.window, s.Timezone)
		r = Rate{Units: w.units, Window: c.longest()}
	}
	if err != nil {
		return Rate{}, err
	}
	each, err := w.spacing(r.Window, r.Units, "take algorithm: sliding_window, without spread")
	b := 1 + int64(s.Tolerance/max(each, 1))
	return Rate{b, time.Duration(b) * each, Shape{Algorithm: LeakyBucket, Timezone: s.Timezone, Tolerance: s.Tolerance}}, err
}

// spacing is a part of a window, in whole microseconds. instead is what may be written if that is too short.
func (w written) spacing(window time.Duration, parts int64, instead string) (time.Duration, error) {
	if window/time.Duration(parts) < minSpacing {
		return 0, fmt.Errorf("%d/%s, evenly, lets one through less than 1ms after another: %s", w.units, w.window, instead)
	}
	each := (window + time.Duration(parts) - 1) / time.Duration(parts)
	return (each + time.Microsecond - 1).Truncate(time.Microsecond), nil
}
