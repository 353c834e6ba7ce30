//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wire is what lies between the workers and the API.
type wire struct {
	name  string
	loss  float64       // of packets, each way
	loses *atomic.Bool  // whether it does at the moment; nil: always
	rate  int           // bytes a second; 0: no bound. What exceeds it queues, for up to 200 ms
	delay time.Duration // each way
}

// lay makes two hosts, as network namespaces, and the wire between them: the API listens on one, and what is begun
// with the prefix runs on the other.
func (w wire) lay(t *testing.T, n int) (net.Listener, []string) {
	t.Helper()
	var ends [2]*os.File
	var listener net.Listener
	names := [2]string{fmt.Sprintf("callq-%d-%d-workers", os.Getpid(), n), fmt.Sprintf("callq-%d-%d-api", os.Getpid(), n)}
	for i, name := range names {
		ip(t, "netns", "add", name)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() }) //nolint:noctx // the test's context has ended
		onHost(t, name, func() (err error) {
			if ends[i], err = openTun(); err != nil {
				return err
			}
			ip(t, "addr", "add", fmt.Sprintf("10.77.%d.%d/24", n, i+1), "dev", "tun0")
			ip(t, "link", "set", "tun0", "up")
			if i == 1 {
				listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("10.77.%d.2:0", n))
			}
			return err
		})
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	go w.carry(t.Context(), ends[0], ends[1], uint64(2*n))
	go w.carry(t.Context(), ends[1], ends[0], uint64(2*n+1))
	return listener, []string{"ip", "netns", "exec", names[0]}
}

// carry moves packets from one end to the other until either is closed.
func (w wire) carry(ctx context.Context, from, to *os.File, seed uint64) {
	type packet struct {
		data []byte
		due  time.Time
	}
	line := make(chan packet, 10_000)
	defer close(line)
	go func() {
		for p := range line {
			select {
			case <-time.After(time.Until(p.due)):
			case <-ctx.Done():
			}
			_, _ = to.Write(p.data)
		}
	}()
	random := rand.New(rand.NewPCG(seed, 7))
	var busy time.Time // until then the wire carries what was sent before
	for {
		data := make([]byte, 2000)
		n, err := from.Read(data)
		if err != nil {
			return
		}
		now := time.Now()
		if busy.Before(now) {
			busy = now
		}
		if random.Float64() < w.loss && (w.loses == nil || w.loses.Load()) || busy.Sub(now) > 200*time.Millisecond {
			continue
		}
		if w.rate > 0 {
			busy = busy.Add(time.Duration(n) * time.Second / time.Duration(w.rate))
		}
		line <- packet{data[:n], busy.Add(w.delay)}
	}
}

// onHost runs on a thread that is in a namespace for as long. The thread must go on after that: processes that were
// begun on it die with it (Pdeathsig).
func onHost(t *testing.T, name string, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		space, err := os.Open("/run/netns/" + name)
		if err == nil {
			defer space.Close()
			err = unix.Setns(int(space.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = errors.Join(do(), unix.Setns(int(home.Fd()), unix.CLONE_NEWNET))
		}
		if err == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// openTun makes the network device tun0 of the thread's namespace: what is sent there is read here.
func openTun() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq("tun0")
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, fmt.Errorf("make tun0: %w", err)
	}
	return os.NewFile(uintptr(fd), "tun0"), nil
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Errorf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
