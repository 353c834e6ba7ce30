package admin

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
)

func TestForecast(t *testing.T) {
	t.Parallel()
	seconds, cost, key := 2.0, 30.0, "big"
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	next := time.Hour + limit.Margin(time.Hour)
	minutely := LimitRule{Units: 10, Window: time.Minute}
	hourly := LimitRule{Units: 5, Window: time.Hour}
	atOnce := LimitRule{Units: 4}
	costly := LimitRule{Units: 300, Window: time.Minute, CountCost: true}
	daily := LimitRule{Units: 10, Window: 24 * time.Hour, Shape: limit.Shape{Algorithm: limit.FixedWindow, Period: "1d"}}
	bucket := LimitRule{Units: 10, Window: 200 * time.Second, Shape: limit.Shape{Algorithm: limit.TokenBucket, Period: "1s", Burst: 100}}
	open := func(hours string) map[string][]string { return map[string][]string{"q": {hours}} }
	for name, c := range map[string]struct {
		rule     LimitRule
		occupied int64      // all units are
		freed    *time.Time // when the first of them comes free
		d        demand
		want     time.Duration // below 0: unknown
	}{
		"nothing waits":     {minutely, 0, nil, demand{}, 0},
		"there is room":     {minutely, 0, nil, demand{Waiting: 10}, 0},
		"three windows":     {minutely, 0, nil, demand{Waiting: 40}, 3 * time.Minute},
		"all is occupied":   {minutely, 10, nil, demand{Waiting: 40}, 4 * time.Minute},
		"the largest key's": {LimitRule{Units: 10, Window: time.Minute, PerKey: true}, 0, nil, demand{Waiting: 90, Key: &key, OfKey: 20}, time.Minute},
		"by cost":           {costly, 0, nil, demand{Waiting: 40, Cost: &cost}, 3 * time.Minute},
		"by cost, unknown":  {costly, 0, nil, demand{Waiting: 600}, time.Minute},
		"nothing yet free":  {hourly, 5, &now, demand{Waiting: 2}, next},
		"nor the next":      {hourly, 5, &now, demand{Waiting: 7}, time.Hour + next},
		"the calendar's":    {daily, 10, &now, demand{Waiting: 15}, 36*time.Hour + time.Minute},
		"a bucket":          {bucket, 0, nil, demand{Waiting: 150}, 5 * time.Second},
		"at once":           {atOnce, 0, nil, demand{Waiting: 40, Seconds: &seconds}, 20 * time.Second},
		"at once, unknown":  {atOnce, 0, nil, demand{Waiting: 40}, -1},
		"outside hours":     {minutely, 0, nil, demand{Waiting: 40, Hours: open("13:00-14:00")}, -1},
		"closes before":     {minutely, 0, nil, demand{Waiting: 40, Hours: open("11:00-12:02")}, -1},
		"closes later":      {minutely, 0, nil, demand{Waiting: 40, Hours: open("11:00-12:03")}, 3 * time.Minute},
		"paused":            {minutely, 0, nil, demand{Waiting: 40}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := Limit{Name: "l", LimitRule: c.rule, LimitUse: LimitUse{State: "open"}, limitFacts: limitFacts{Now: now}}
			if name == "paused" {
				l.State = "paused: x"
			}
			var used []usage
			if c.occupied > 0 {
				used = []usage{{Units: c.occupied, FreedAt: c.freed}}
			}
			l.reckon(used, nil)
			f := l.forecast(c.d)
			if c.want < 0 && f.Lasts != nil || c.want >= 0 && (f.Lasts == nil || *f.Lasts != c.want) {
				t.Errorf("lasts %v, want %v: %+v", f.Lasts, c.want, f)
			}
		})
	}
}
