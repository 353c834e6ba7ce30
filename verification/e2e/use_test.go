//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/verification/fakeapi"
)

// How much of a limit is used where answers take their time: nothing tells sooner than an answer that a request has been read.
// With -figures 2 and more it prints the shares.
func TestUseOfSlowAPIs(t *testing.T) {
	if *figures == 1 {
		t.Skip("it only prints figures: make stalls runs it")
	}
	for _, rate := range []struct {
		units  int
		window time.Duration
		spans  time.Duration // is measured
	}{{20, time.Second, time.Minute}, {500, time.Minute, 5 * time.Minute}} {
		for _, answer := range []string{"20", "20,0.5", "300", "300,0.5", "1000", "1000,0.5", "3000", "3000,0.5", "30000", "30000,0.5"} {
			t.Run(fmt.Sprintf("%d per %s, answers after %s ms", rate.units, rate.window, answer), func(t *testing.T) {
				t.Parallel()
				f := &farm{t: t, record: filepath.Join(t.TempDir(), "arrivals")}
				slack := ""
				if *stallsWith != "" {
					slack = ", slack: " + *stallsWith
				}
				s := newStack(t, fmt.Sprintf("limits: {api: {rate: %d/%.0fs%s}}\nqueues: {default: {limits: [api], timeout: 5m}}",
					rate.units, rate.window.Seconds(), slack), fakeapi.Config{})
				config, err := os.ReadFile(s.config)
				if err != nil {
					t.Fatal(err)
				}
				config = []byte(strings.Replace(string(config), "worker: {concurrency: 20, shutdown_timeout: 10s}", "worker: {concurrency: 1000}", 1))
				if err := os.WriteFile(s.config, config, 0o600); err != nil {
					t.Fatal(err)
				}
				f.node("ANSWER=" + answer)
				s.spawn("serve")
				const warm = 2 // windows
				calls := int(float64(rate.units) * (rate.spans.Seconds()/rate.window.Seconds() + warm + 2))
				s.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, $2)`, f.url, calls)
				s.await(time.Minute, `SELECT EXISTS (SELECT FROM callq.call_open WHERE started_at IS NOT NULL)`)
				s.await(rate.spans+time.Minute, `SELECT count(*) = 0 OR min(created_at) < clock_timestamp() - $1::interval FROM call_queue`, rate.spans+2*time.Second)
				arrivals := f.arrivals()
				first, n := arrivals[0], 0
				for _, at := range arrivals {
					if at.Sub(first) < rate.spans {
						n++
					}
				}
				most := mostIn(arrivals, rate.window)
				t.Logf("| %d per %s | %s ms | %d | %.1f %% |", rate.units, rate.window, answer, most, 100*float64(n)/(float64(rate.units)*rate.spans.Seconds()/rate.window.Seconds()))
				if most > rate.units {
					t.Errorf("%d arrived in %s; %d are allowed", most, rate.window, rate.units)
				}
			})
		}
	}
}
