//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/callq/callq/verification/fakeapi"
)

// A network that loses packets, or is slow, has no window exceeded: TCP sends again what was lost, so that requests
// arrive later than they were written.
//
//callq:guarantee 1
func TestPacketLoss(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("it makes network namespaces: run make loss as root")
	}
	for i, w := range []wire{
		{name: "none", delay: time.Millisecond},
		{name: "0.5 %", loss: 0.005, delay: time.Millisecond},
		{name: "1 %", loss: 0.01, delay: time.Millisecond},
		{name: "2 %", loss: 0.02, delay: 5 * time.Millisecond},
		{name: "5 %", loss: 0.05, delay: time.Millisecond},
		{name: "10 Mbit a second", loss: 0.001, rate: 10_000_000 / 8, delay: 10 * time.Millisecond},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			const rate, window, calls = 50, time.Second, 500
			listener, inside := w.lay(t, i)
			s := newStack(t, fmt.Sprintf("limits: {api: {rate: %d/%s}}\nqueues: {default: {limits: [api], backoff: 200ms..1s, max_attempts: 20}}", rate, window),
				fakeapi.Config{Limit: rate, Window: window, Latency: apiLatency, Listener: listener})
			s.prefix = inside
			s.start(2, 2)
			s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
			s.insert("default", calls)
			s.awaitDone(2*time.Minute, calls)
			s.exact(rate, window, 0)
			t.Logf("used %.1f %%, most in any %s: %d of %d", 100*s.api.Use(rate, window), window, s.api.MaxInWindow(window), rate)
		})
	}
}

// A thread that has been on another host goes on: the kernel kills a callq with the thread that began it.
func TestThreadOutlivesItsHost(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("it makes network namespaces: run make loss as root")
	}
	name := fmt.Sprintf("callq-%d-thread", os.Getpid())
	ip(t, "netns", "add", name)
	defer ip(t, "netns", "del", name)
	threads := make(chan int, 1)
	onHost(t, name, func() error { threads <- unix.Gettid(); return nil })

	// A process that is begun on that thread has it as its parent until it ends.
	thread := fmt.Sprintf("/proc/self/task/%d", <-threads)
	for range 100 {
		if _, err := os.Stat(thread); err != nil {
			t.Fatalf("the thread ended: %v", err)
		}
		runtime.Gosched()
	}
}
