//go:build e2e

package e2e

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/verification/fakeapi"
)

// A replay of the rate that was in force gives the waits that there were; one of twice the rate about half of them.
func TestReplayIsWhatHappened(t *testing.T) {
	s := newStack(t, "limits: {api: {rate: 50/1s}, pool: {concurrency: 4}}\nqueues: {mail: {limits: [api]}, web: {limits: [pool]}}",
		fakeapi.Config{Latency: 50 * time.Millisecond})
	s.start(1, 1)
	s.await(time.Minute, `SELECT count(*) = 1 FROM callq.call_workers`)
	s.insert("mail", 600)
	s.awaitDone(time.Minute, 600)
	s.insert("web", 400)
	s.awaitDone(time.Minute, 1000)
	for name, rates := range map[string][2]string{"api": {"50/1s", "100/1s"}, "pool": {"4", "8"}} {
		replay := func(rate string) (r admin.Replay) {
			out, code := s.command("limits", "replay", name, "--rate", rate, "-o", "json")
			if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r.Rates) != 2 {
				t.Fatalf("exit %d, %v: %s", code, err, out)
			}
			return r
		}
		same, twice := replay(rates[0]), replay(rates[1])
		off := func(of admin.Outcome) float64 { return of.P50.Seconds()/same.Was.P50.Seconds() - 1 }
		t.Logf("%s: the median was %s, p99 %s; by %s %s and %s (%.1f %% off), by %s %s and %s; %.0f %% used", name, same.Was.P50, same.Was.P99,
			rates[0], same.Rates[1].P50, same.Rates[1].P99, 100*off(same.Rates[1]), rates[1], twice.Rates[1].P50, twice.Rates[1].P99, 100*same.Rates[1].Used)
		if math.Abs(off(same.Rates[1])) > 0.1 || twice.Rates[1].P50 > same.Was.P50*6/10 {
			t.Errorf("%s: %+v\n%+v", name, same, twice)
		}
	}
}
