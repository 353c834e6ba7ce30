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
	full := Limit{LimitRule: LimitRule{Units: 5, Window: time.Hour}, LimitUse: LimitUse{State: "open", Occupied: 5}, limitFacts: limitFacts{FreedAt: new(now)}}
	next := time.Hour + limit.Margin(time.Hour)
	daily := limit.Shape{Algorithm: limit.FixedWindow, Period: "1d"}
	bucket := limit.Shape{Algorithm: limit.TokenBucket, Period: "1s", Burst: 100}
	row := func(units int64, window time.Duration) Limit {
		return Limit{Name: "l", LimitRule: LimitRule{Units: units, Window: window}, LimitUse: LimitUse{State: "open"}}
	}
	for name, c := range map[string]struct {
		limit Limit
		d     demand
		want  time.Duration // below 0: unknown
	}{
		"nothing waits":     {row(10, time.Minute), demand{}, 0},
		"there is room":     {row(10, time.Minute), demand{Waiting: 10}, 0},
		"three windows":     {row(10, time.Minute), demand{Waiting: 40}, 3 * time.Minute},
		"all is occupied":   {Limit{LimitRule: LimitRule{Units: 10, Window: time.Minute}, LimitUse: LimitUse{State: "open", Occupied: 10}}, demand{Waiting: 40}, 4 * time.Minute},
		"the largest key's": {Limit{LimitRule: LimitRule{Units: 10, Window: time.Minute, PerKey: true}, LimitUse: LimitUse{State: "open"}}, demand{Waiting: 90, Key: &key, OfKey: 20}, time.Minute},
		"by cost":           {Limit{LimitRule: LimitRule{Units: 300, Window: time.Minute, CountCost: true}, LimitUse: LimitUse{State: "open"}}, demand{Waiting: 40, Cost: &cost}, 3 * time.Minute},
		"by cost, unknown":  {Limit{LimitRule: LimitRule{Units: 10, Window: time.Minute, CountCost: true}, LimitUse: LimitUse{State: "open"}}, demand{Waiting: 20}, time.Minute},
		"nothing yet free":  {full, demand{Waiting: 2, Now: &now}, next},
		"nor the next":      {full, demand{Waiting: 7, Now: &now}, time.Hour + next},
		"the calendar's":    {Limit{LimitRule: LimitRule{Units: 10, Window: 24 * time.Hour, Shape: daily}, LimitUse: LimitUse{State: "open", Occupied: 10}, limitFacts: limitFacts{FreedAt: new(now)}}, demand{Waiting: 15, Now: &now}, 36*time.Hour + time.Minute},
		"a bucket":          {Limit{LimitRule: LimitRule{Units: 10, Window: 200 * time.Second, Shape: bucket}, LimitUse: LimitUse{State: "open"}}, demand{Waiting: 150, Now: &now}, 5 * time.Second},
		"at once":           {row(4, 0), demand{Waiting: 40, Seconds: &seconds}, 20 * time.Second},
		"at once, unknown":  {row(4, 0), demand{Waiting: 40}, -1},
		"outside hours":     {row(10, time.Minute), demand{Waiting: 40, Now: &now, Queues: []string{"q"}, hours: map[string][]string{"q": {"13:00-14:00"}}}, -1},
		"closes before":     {row(10, time.Minute), demand{Waiting: 40, Now: &now, Queues: []string{"q"}, hours: map[string][]string{"q": {"11:00-12:02"}}}, -1},
		"closes later":      {row(10, time.Minute), demand{Waiting: 40, Now: &now, Queues: []string{"q"}, hours: map[string][]string{"q": {"11:00-12:03"}}}, 3 * time.Minute},
		"another has hours": {row(10, time.Minute), demand{Waiting: 40, Now: &now, Queues: []string{"q"}, hours: map[string][]string{"r": {"13:00-14:00"}}}, 3 * time.Minute},
		"paused":            {Limit{LimitRule: LimitRule{Units: 10, Window: time.Minute}, LimitUse: LimitUse{State: "paused: x"}}, demand{Waiting: 40}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.limit.Now = now
			c.limit.reckon(nil, nil)
			f := c.limit.forecast(c.d)
			if c.want < 0 && f.Lasts != nil || c.want >= 0 && (f.Lasts == nil || *f.Lasts != c.want) {
				t.Errorf("lasts %v, want %v: %+v", f.Lasts, c.want, f)
			}
		})
	}
}
