package forecast

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
)

// Requests wait as the limit says: none that there is room for, and each other until a unit comes free.
func TestReplay(t *testing.T) {
	t.Parallel()
	second := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	var requests, keyed []Request
	for i := range 40 { // 20 at once, and 20 a minute later
		at := time.Duration(i/20) * time.Minute
		requests = append(requests, Request{Due: at, Units: 1, Holds: time.Second})
		keyed = append(keyed, Request{Due: at, Key: string(rune('a' + i%4)), Units: 1, Holds: time.Second})
	}
	sliding := func(units int64, window time.Duration) Limit {
		return Limit{Rate: limit.Rate{Units: units, Window: window}}
	}
	perKey := sliding(5, 10*time.Second)
	perKey.PerKey = true
	for name, c := range map[string]struct {
		limit    Limit
		own      map[string]int64
		requests []Request
		p50, max float64 // seconds
		most     int64
	}{
		"enough":      {sliding(20, 10*time.Second), nil, requests, 0, 0, 1},
		"half":        {sliding(10, 10*time.Second), nil, requests, 10, 10, 20},
		"a quarter":   {sliding(5, 10*time.Second), nil, requests, 20, 30, 20},
		"concurrency": {Limit{Rate: limit.Rate{Units: 10}}, nil, requests, 1, 1, 20},
		"per key":     {perKey, nil, keyed, 0, 0, 1},
		"a key's own": {perKey, map[string]int64{"b": 1}, keyed, 0, 40, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := Replay(c.limit, c.own, time.Now(), c.requests, 0)
			near := func(got time.Duration, want float64) bool {
				return got >= second(want) && got <= second(want*1.03+0.3)
			}
			if !near(r.P50, c.p50) || !near(r.Longest, c.max) || r.Most > c.most || r.Used <= 0 || r.Used > 1.001 {
				t.Errorf("%+v, want a median of %.0f s, %.0f s at most, %d at once", r, c.p50, c.max, c.most)
			}
		})
	}
}
