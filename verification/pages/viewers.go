package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// viewers prints what callq and Postgres take while nobody, one and fifty look at the status.
func (s *suite) viewers(ctx context.Context) error {
	if err := s.browser.run(leave()); err != nil { // the page that was visited last is watched no longer
		return err
	}
	server, err := s.postmaster(ctx)
	if err != nil {
		return err
	}
	var idle, single float64
	for _, viewers := range []int{0, 1, 50} {
		cores, bytes, err := s.watch(ctx, viewers, server)
		if err != nil {
			return err
		}
		switch viewers {
		case 0:
			idle = cores
		case 1:
			single = cores
		}
		fmt.Printf("%2d viewers: %.3f cores, %.3f more than nobody; %d kB sent\n", viewers, cores, cores-idle, bytes/1000)
	}
	fmt.Printf("goals: one takes 0.02 cores more than nobody, and fifty 1.3 times that: %.3f in all\n", idle+1.3*(single-idle))
	return nil
}

// watch has so many viewers look at the status, and returns how much CPU callq and Postgres took meanwhile, in cores.
func (s *suite) watch(ctx context.Context, viewers, server int) (cores float64, sent int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var read atomic.Int64
	for range viewers {
		all.Go(func() { s.look(ctx, &read) })
	}
	defer all.Wait()
	defer cancel()
	time.Sleep(s.watched / 4) // until all are there
	before, err := used(server, s.serve.Process.Pid)
	if err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	read.Store(0)
	time.Sleep(s.watched)
	after, err := used(server, s.serve.Process.Pid)
	return (after - before).Seconds() / time.Since(begun).Seconds(), read.Load(), err
}

// look reads the events of the status until ctx ends.
func (s *suite) look(ctx context.Context, read *atomic.Int64) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.site+"/live?page=%2F", nil)
	if err != nil {
		return
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	_, _ = io.Copy(counter{read}, response.Body)
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// postmaster is the parent of the database's backends.
func (s *suite) postmaster(ctx context.Context) (int, error) {
	backend, err := one[int](ctx, s.world, "SELECT pg_backend_pid()")
	if err != nil {
		return 0, err
	}
	fields, err := stat(backend)
	if err != nil {
		return 0, fmt.Errorf("postgres must run on this machine: %w", err)
	}
	return strconv.Atoi(fields[1])
}

// stat is what /proc tells of a process after its name: its state, its parent, ….
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil, err
	}
	_, after, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
	return strings.Fields(after), nil
}

// used is how much CPU processes have used, with their children, those that have ended too.
func used(roots ...int) (time.Duration, error) {
	const hertz = 100 // USER_HZ, of every Linux
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	ticks, children := map[int]int64{}, map[int][]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		fields, err := stat(pid)
		if err != nil {
			continue // it has ended
		}
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
		for _, field := range fields[11:15] { // utime, stime, and those of children that were waited for
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks[pid] += n
		}
	}
	var sum int64
	for len(roots) > 0 {
		pid := roots[0]
		roots = append(roots[1:], children[pid]...)
		sum += ticks[pid]
	}
	return time.Duration(sum) * time.Second / hertz, nil
}
