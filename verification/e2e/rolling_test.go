//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/callq/callq/verification/fakeapi"
)

const (
	rollingRate  = 100
	rollingCalls = 1200
)

func rollingStack(t *testing.T) *stack {
	t.Helper()
	t.Parallel()
	return newStack(t, "limits: {api: {rate: 100/1s}}\nqueues: {default: {limits: [api], timeout: 10s}}",
		fakeapi.Config{Limit: rollingRate, Window: time.Second, Latency: apiLatency})
}

// A rolling restart under load, each process by SIGTERM, its successor started before it or after it:
// no call is lost or sent twice, the limit holds, and every process exits 0. The longest gaps between
// requests are printed, for they depend on the machine.
func TestRollingRestart(t *testing.T) {
	s := rollingStack(t)
	processes := []*process{s.spawn("dispatch"), s.spawn("dispatch"), s.spawn("work"), s.spawn("work")}
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	s.insert("default", rollingCalls)
	s.served(2 * rollingRate)
	begun := time.Now()
	for i, old := range processes {
		s.served((2 + 2*i) * rollingRate)
		var next *process
		if i%2 == 0 {
			next = s.spawn(old.cmd.Args[len(old.cmd.Args)-1])
		}
		if code := old.terminate(); code != 0 {
			t.Errorf("%s: exit %d after SIGTERM\n%s", old.name, code, old.log)
		}
		if next == nil {
			next = s.spawn(old.cmd.Args[len(old.cmd.Args)-1])
		}
		processes[i] = next
	}
	over := time.Now()
	s.awaitDone(time.Minute, rollingCalls)
	for _, p := range processes {
		if code := p.terminate(); code != 0 {
			t.Errorf("%s: exit %d after SIGTERM\n%s", p.name, code, p.log)
		}
	}
	s.exact(rollingRate, time.Second, rollingCalls)
	s.await(time.Minute, `SELECT count(*) = 0 FROM callq.call_open`)
	s.await(time.Minute, `SELECT count(*) = 0 FROM call_attempts WHERE outcome NOT IN ('done', 'not_sent')`)
	forever := time.Now()
	t.Logf("longest gap between requests: %s before the restarts, %s while they went on (%s), %s after them",
		s.longestGap(time.Time{}, begun), s.longestGap(begun, over), over.Sub(begun).Round(time.Millisecond), s.longestGap(over, forever))
}

// longestGap is the longest time from one request to the next, of which at least one lies between the two.
func (s *stack) longestGap(from, to time.Time) (longest time.Duration) {
	requests := s.api.Requests()
	for i := 1; i < len(requests); i++ {
		if requests[i].At.After(from) && requests[i-1].At.Before(to) {
			longest = max(longest, requests[i].At.Sub(requests[i-1].At))
		}
	}
	return longest.Round(time.Millisecond)
}

// A dispatcher that is told to stop within its claim finishes it and hands it over: nobody else is there
// who could.
func TestDispatcherTerminatedInItsClaim(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	dispatcher, release := s.dispatcherInItsClaim()
	ended := make(chan int, 1)
	go func() { ended <- dispatcher.terminate() }()
	if err := dispatcher.says("dispatcher draining"); err != nil {
		t.Fatal(err)
	}
	s.await(time.Minute, inItsClaim) // its claim is not given up
	release()
	if code := <-ended; code != 0 {
		t.Errorf("exit %d after SIGTERM\n%s", code, dispatcher.log)
	}
	s.await(time.Minute, `SELECT count(*) = 0 FROM callq.call_open`)
	claimed := len(s.api.Requests())
	if claimed == 0 || claimed > faultRate {
		t.Errorf("%d requests of its last claim, want 1 to %d", claimed, faultRate)
	}
	s.start(1, 0)
	s.settled(30)
	s.exact(faultRate, faultWindow, 30)
}
