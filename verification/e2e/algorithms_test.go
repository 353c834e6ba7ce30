//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/verification/fakeapi"
)

// Four dispatchers, and limits that are no sliding windows over all calls: what the API saw is within each, by
// its definition and on the API's clock.
//
//callq:guarantee 1
func TestLimitsOfEveryAlgorithm(t *testing.T) {
	t.Parallel()
	const own, others = 20, 5
	s := newStack(t, fmt.Sprintf(`
limits:
  bucket:   {rate: 20/s, algorithm: token_bucket, burst: 30}
  calendar: {rate: 30/5s, algorithm: fixed_window, timezone: America/New_York}
  leaky:    {rate: 10/s, algorithm: leaky_bucket}
  even:     {rate: 10/s, spread: true, tolerance: 250ms}
  speeds:   {rate: [10/s, 40/5s]}
  account:  {rate: %d/s, per: key, overrides: {big: %d/s}}
queues:
  bucket:   {limits: [bucket]}
  calendar: {limits: [calendar]}
  leaky:    {limits: [leaky]}
  even:     {limits: [even]}
  speeds:   {limits: [speeds]}
  account:  {limits: [account]}
`, others, own), fakeapi.Config{Latency: apiLatency})
	s.start(4, 2)
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	var calls []callqueue.Call
	add := func(queue, key string, n int) {
		for range n {
			calls = append(calls, callqueue.Call{Queue: queue, Key: key, Data: map[string]any{"url": fmt.Sprintf("%s?key=%s", s.api.URL(), queue+key)}})
		}
	}
	add("bucket", "", 150)
	add("calendar", "", 75)
	add("leaky", "", 60)
	add("even", "", 60)
	add("speeds", "", 70)
	add("account", "big", 100)
	add("account", "small", 25)
	if _, err := s.client.InsertMany(context.Background(), calls); err != nil {
		t.Fatal(err)
	}
	s.awaitDone(3*time.Minute, len(calls))
	s.verify()
	s.nothingTwice()

	arrivals := map[string][]time.Time{}
	for _, r := range s.api.Requests() {
		arrivals[r.Key] = append(arrivals[r.Key], r.At)
	}
	for key, n := range map[string]int{"bucket": 150, "calendar": 75, "leaky": 60, "even": 60, "speeds": 70, "accountbig": 100, "accountsmall": 25} {
		if len(arrivals[key]) != n {
			t.Errorf("%s: %d requests, want %d", key, len(arrivals[key]), n)
		}
	}
	atMost := func(key string, allowed func(first, last time.Time) float64) {
		t.Helper()
		for i, first := range arrivals[key] {
			for j, last := range arrivals[key][i:] {
				if most := allowed(first, last); float64(j+1) > most+1e-6 {
					t.Fatalf("%s: %d requests within %s; %.3f are allowed", key, j+1, last.Sub(first), most)
				}
			}
		}
	}
	sliding := func(n int, window time.Duration) func(first, last time.Time) float64 {
		return func(first, last time.Time) float64 {
			if last.Sub(first) < window {
				return float64(n)
			}
			return float64(len(calls))
		}
	}
	atMost("bucket", func(first, last time.Time) float64 { return 30 + 20*last.Sub(first).Seconds() })
	atMost("calendar", func(first, last time.Time) float64 {
		if first.Round(0).Truncate(5 * time.Second).Equal(last.Round(0).Truncate(5 * time.Second)) {
			return 30
		}
		return float64(len(calls))
	})
	atMost("leaky", sliding(1, 100*time.Millisecond))
	atMost("even", func(first, last time.Time) float64 { return 1 + 10*(last.Sub(first).Seconds()+0.25) })
	atMost("speeds", sliding(10, time.Second))
	atMost("speeds", sliding(40, 5*time.Second))
	atMost("accountbig", sliding(own, time.Second))
	atMost("accountsmall", sliding(others, time.Second))
	for key, of := range arrivals {
		t.Logf("%s: %d within %s", key, len(of), of[len(of)-1].Sub(of[0]).Round(time.Millisecond))
	}
}
