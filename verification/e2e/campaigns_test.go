//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/callq/callq/verification/fakeapi"
)

// Voice campaigns, each a queue with a backlog, under one limit of calls a second for all; a number is called at most once at a time. With
// -figures above 1 it is 20 times 100,000 calls for five minutes, and the use of the limit must be at least 95 %.
//
//callq:guarantee 1
func TestLimitsOfCampaigns(t *testing.T) {
	const campaigns, rate, numbers = 20, 500, 20_000
	calls, length := 1000, 20*time.Second
	if *figures > 1 {
		calls, length = 100_000, 5*time.Minute
	}
	rules := fmt.Sprintf("limits: {all: {rate: %d/1s}, number: {concurrency: 1, per: key}}\nqueues:\n", rate)
	for n := range campaigns {
		rules += fmt.Sprintf("  campaign%d: {limits: [all, number]}\n", n)
	}
	s := newStack(t, rules, fakeapi.Config{Latency: apiLatency})
	s.exec(`INSERT INTO call_queue (queue, key, call_data)
		SELECT 'campaign' || n % $1, '+49' || hash, jsonb_build_object('url', $2 || '?key=+49' || hash)
		FROM generate_series(1, $1 * $3::bigint) n CROSS JOIN LATERAL (SELECT abs(hashint8(n)) % $4 AS hash) h`, campaigns, s.api.URL(), calls, numbers)
	s.start(4, 4)
	s.await(3*time.Minute, `SELECT count(*) = 4 FROM callq.call_workers`)
	for deadline := time.Now().Add(3 * time.Minute); s.api.Count() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no call was made within 3 minutes")
		}
	}
	time.Sleep(2 * time.Second) // until all take part
	before, cpu := s.api.Count(), s.redisCPU()
	time.Sleep(length)
	made, cpu := s.api.Count()-before, s.redisCPU()-cpu
	var runs float64
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*)::float8 / count(DISTINCT call_id) FROM call_attempts`).Scan(&runs); err != nil {
		t.Fatal(err)
	}
	use := float64(made) / (rate * length.Seconds())
	t.Logf("%d calls in %s: used %.1f %% of the limit; Redis took %.0f µs of CPU a call; %.3f runs a call", made, length, 100*use, 1e6*cpu/float64(made), runs)
	if most := s.api.MaxInWindow(time.Second); most > rate {
		t.Errorf("the API saw %d calls in a second; %d are allowed", most, rate)
	}
	if _, most := s.api.MostAtOnce(); most > 1 {
		t.Errorf("a number was called %d times at once", most)
	}
	if *figures > 1 && use < .95 {
		t.Errorf("used %.1f %% of the limit, want 95 %%", 100*use)
	}
}

var cpuText = regexp.MustCompile(`used_cpu_(?:sys|user):([0-9.]+)`)

// redisCPU is how many seconds of CPU Redis has taken.
func (s *stack) redisCPU() (seconds float64) {
	s.t.Helper()
	text, err := s.redisClient.Info(s.t.Context(), "cpu").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, found := range cpuText.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseFloat(found[1], 64) // it matches
		seconds += n
	}
	return seconds
}
