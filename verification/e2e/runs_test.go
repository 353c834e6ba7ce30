//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/verification/fakeapi"
)

// narrow is a limit of which a unit's way through a claim takes longer than its window.
type narrow struct {
	rate                 string
	burst                int // 0: it has none
	units                int // in any window; of a bucket, that come in
	window               time.Duration
	answer               time.Duration // how long the API takes
	dispatchers, workers int
	seconds              int     // so many of the rate's calls are made; a tenth of it in CI
	atLeast              float64 // calls a second
}

func narrows() []narrow {
	const ms = time.Millisecond
	return []narrow{
		{"100/s, algorithm: leaky_bucket", 0, 1, 10 * ms, 0, 1, 1, 20, 90},
		{"100/s, algorithm: leaky_bucket", 0, 1, 10 * ms, ms, 4, 4, 20, 0.9 * 1000 / 11},
		{"100/s, algorithm: leaky_bucket", 0, 1, 10 * ms, 20 * ms, 1, 4, 10, 0.9 * 1000 / 30},
		{"101/s, algorithm: sliding_window_counter", 0, 1, 10 * ms, 0, 1, 1, 20, 90},
		{"100/s, spread: true, tolerance: 50ms", 0, 6, 60 * ms, 0, 1, 1, 20, 90},
		{"10/s, algorithm: leaky_bucket", 0, 1, 100 * ms, 0, 1, 1, 20, 9.7},
		{"2/s, algorithm: leaky_bucket", 0, 1, 500 * ms, 0, 1, 1, 20, 1.9},
		{"1000/s, algorithm: leaky_bucket", 0, 1, ms, 0, 1, 1, 5, 600},
		{"100/s, algorithm: token_bucket, burst: 1", 1, 100, time.Second, 0, 1, 1, 20, 90},
		{"100/s, algorithm: token_bucket, burst: 5", 5, 100, time.Second, 0, 1, 1, 20, 90},
		{"1/10ms", 0, 1, 10 * ms, 0, 4, 1, 20, 90},
		{"10/100ms", 0, 10, 100 * ms, ms, 1, 4, 20, 90},
		{"10/500ms", 0, 10, 500 * ms, ms, 1, 1, 20, 18},
	}
}

// Limits whose units come one by one are used nearly to the full, and no request comes sooner than they allow. -figures above 1 makes
// it as many calls as the figures need, and fails where they are not reached.
//
//callq:guarantee 1
func TestRuns(t *testing.T) {
	for _, c := range narrows() {
		t.Run(fmt.Sprintf("%s, answers of %s, %d dispatchers, %d workers", c.rate, c.answer, c.dispatchers, c.workers), func(t *testing.T) {
			calls := int(float64(c.seconds) * float64(c.units) / c.window.Seconds())
			if *figures < 2 {
				calls = max(calls/10, 10)
			}
			s := newStack(t, fmt.Sprintf("limits: {api: {rate: %s}}\nqueues: {default: {limits: [api]}}", c.rate), fakeapi.Config{Latency: c.answer})
			s.start(c.dispatchers, c.workers)
			s.await(time.Minute, `SELECT count(*) = $1 FROM callq.call_workers`, c.workers)
			before := s.cpu()
			s.insert("default", calls)
			s.awaitDone(3*time.Minute, calls)
			after := s.cpu()
			if n := s.api.Count(); n != calls {
				t.Errorf("%d requests, want %d", n, calls)
			}
			c.holds(t, s.api.Requests())
			s.nothingTwice()
			s.verify()
			rate := float64(calls-1) / s.api.Span().Seconds()
			t.Logf("%.1f calls a second; of CPU a call Postgres took %.0f µs, callq %.0f µs", rate,
				(after.postgres-before.postgres)*1e6/float64(calls), (after.callq-before.callq)*1e6/float64(calls))
			if *figures > 1 && rate < c.atLeast {
				t.Errorf("%.1f calls a second, want %.1f", rate, c.atLeast)
			}
		})
	}
}

// Of 1,000 keys with a narrow limit of their own, those that have work share what the machine can do: about as much as without a limit.
//
//callq:guarantee 1
func TestKeysInRuns(t *testing.T) {
	const known, working, each = 1000, 500, 100 * time.Millisecond
	calls := 4 // of each key
	if *figures > 1 {
		calls = 20
	}
	s := newStack(t, "limits: {account: {rate: 10/s, algorithm: leaky_bucket, per: key}}\nqueues: {free: {}, default: {limits: [account]}}", fakeapi.Config{Latency: time.Millisecond})
	s.start(1, 2)
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	s.exec(`INSERT INTO call_queue (key, call_data) SELECT n::text, jsonb_build_object('url', $1::text || '?key=' || n) FROM generate_series(1, $2::int) n`,
		s.api.URL(), known)
	s.awaitDone(time.Minute, known)
	took := func(queue string, done int) time.Duration {
		begin := time.Now()
		s.exec(`INSERT INTO call_queue (queue, key, call_data)
			SELECT $1, n::text, jsonb_build_object('url', $2::text || '?key=' || n) FROM generate_series(1, $3::int), generate_series(1, $4::int) n`,
			queue, s.api.URL(), calls, working)
		s.awaitDone(3*time.Minute, done)
		return time.Since(begin)
	}
	free := took("free", known+calls*working)
	from := s.api.Count()
	before := s.cpu()
	paced := took("default", known+2*calls*working)
	after := s.cpu()
	busy := (after.postgres - before.postgres + after.callq - before.callq) / paced.Seconds() / float64(runtime.NumCPU())
	byKey := map[string][]fakeapi.Request{}
	for _, r := range s.api.Requests()[from:] {
		byKey[r.Key] = append(byKey[r.Key], r)
	}
	for key, requests := range byKey {
		if len(requests) != calls {
			t.Errorf("key %s has %d requests, want %d", key, len(requests), calls)
		}
		narrow{units: 1, window: each}.holds(t, requests)
	}
	s.nothingTwice()
	s.verify()
	could := slices.Max([]time.Duration{free, each * time.Duration(calls-1)})
	t.Logf("%d calls of %d keys: %s; without a limit %s: %.2f of that; Postgres and callq took %.2f of the machine",
		calls*working, working, paced, free, could.Seconds()/paced.Seconds(), busy)
	if ratio := could.Seconds() / paced.Seconds(); *figures > 1 && ratio < 0.9 && busy < 0.7 { // else the CPU bounds it
		t.Errorf("%.2f of what it could be, want 0.9", ratio)
	}
}

// holds checks each request against those after it.
func (c narrow) holds(t *testing.T, requests []fakeapi.Request) {
	t.Helper()
	for i, first := range requests {
		for n, last := range requests[i:] {
			in := last.At.Sub(first.At)
			allowed := math.Inf(1)
			switch {
			case c.burst > 0:
				allowed = float64(c.burst) + float64(c.units)*in.Seconds()/c.window.Seconds()
			case in < c.window:
				allowed = float64(c.units)
			}
			if float64(n+1) > allowed+1e-6 {
				t.Fatalf("%d requests within %s; %.3f are allowed", n+1, in, allowed)
			}
			if in > 2*c.window+time.Second {
				break
			}
		}
	}
}

// cpuTime is seconds of CPU.
type cpuTime struct{ postgres, callq float64 }

// cpu is what Postgres, and the processes that this one began, have taken so far.
func (s *stack) cpu() (c cpuTime) {
	s.t.Helper()
	var backend int
	if err := s.pool.QueryRow(s.t.Context(), `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
		s.t.Fatal(err)
	}
	postmaster, _ := procStat(backend)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, seconds := procStat(pid)
		switch {
		case pid == postmaster || parent == postmaster:
			c.postgres += seconds
		case parent == os.Getpid():
			if line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline")); strings.HasPrefix(string(line), callq) {
				c.callq += seconds
			}
		}
	}
	return c
}

// procStat is a process's parent, and the CPU that it and its children that have ended took.
func procStat(pid int) (parent int, seconds float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	parent, _ = strconv.Atoi(fields[1])
	for _, field := range fields[11:15] { // user and system, own and of children that have ended
		ticks, _ := strconv.ParseFloat(field, 64)
		seconds += ticks / 100
	}
	return parent, seconds
}
