//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// fault is one way to strike a victim. strike returns what undoes it.
type fault struct {
	name     string
	victim   string // dispatcher, worker, redis, postgres or everything
	times    int    // in a deck of all faults, which is shuffled and dealt
	min, max time.Duration
	strike   func(*victim) (undo func() error, err error)
}

// A frozen worker passes the deadline of its attempts (the queues' timeout and a second), and at
// times that of its beats (6 s); a frozen dispatcher those of its claim (5 s) and of Redis (2 s).
func faults() []fault {
	return []fault{
		{"SIGKILL", "dispatcher", 4, 0, 2 * time.Second, (*victim).killProcess},
		{"SIGSTOP", "dispatcher", 2, 5500 * time.Millisecond, 8 * time.Second, (*victim).freezeProcess},
		{"SIGKILL", "worker", 4, 0, 2 * time.Second, (*victim).killProcess},
		{"SIGSTOP", "worker", 3, 3300 * time.Millisecond, 8 * time.Second, (*victim).freezeProcess},
		{"SIGTERM", "dispatcher", 1, 0, time.Second, (*victim).terminateProcess},
		{"SIGTERM", "worker", 1, 0, time.Second, (*victim).terminateProcess},
		{"SIGKILL", "redis", 2, 0, 3 * time.Second, (*victim).killRedis},
		{"FLUSHALL", "redis", 2, 0, 0, (*victim).flushRedis},
		{"SIGSTOP", "redis", 1, 2500 * time.Millisecond, 8 * time.Second, (*victim).freezeRedis},
		{"SIGQUIT", "postgres", 2, 0, 5 * time.Second, (*victim).quitPostgres},
		{"SIGKILL of all processes", "postgres", 2, 0, 2 * time.Second, (*victim).killPostgres},
		{"SIGKILL", "everything", 1, 0, 2 * time.Second, (*victim).killAll},
	}
}

// kill is one planned strike.
type kill struct {
	At     time.Duration // since the load began
	Fault  fault
	Number int // which of the dispatchers or workers
	Down   time.Duration
}

func (k kill) String() string {
	return fmt.Sprintf("%9.4fs %s %s, undone after %s", k.At.Seconds(), k.Fault.name, victimName(k.Fault.victim, k.Number), k.Down)
}

// plan draws n kills from a seed: the same ones for the same seed. The pauses between them have
// nothing to do with any window.
func plan(seed uint64, n int) []kill {
	random := rand.New(rand.NewPCG(seed, 1))
	var deck []fault
	kills := make([]kill, n)
	at := 2 * time.Second // so that there is something to break
	for i := range kills {
		if len(deck) == 0 {
			for _, f := range faults() {
				for range f.times {
					deck = append(deck, f)
				}
			}
			random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		at += 1300*time.Millisecond + time.Duration(random.Int64N(int64(4800*time.Millisecond)))
		k := kill{At: at, Fault: deck[0], Down: deck[0].min}
		deck = deck[1:]
		if k.Fault.max > k.Fault.min {
			k.Down += time.Duration(random.Int64N(int64(k.Fault.max - k.Fault.min)))
		}
		if k.Fault.victim == "dispatcher" || k.Fault.victim == "worker" {
			k.Number = random.IntN(ofEach)
		}
		kills[i] = k
	}
	return kills
}

func victimName(kind string, number int) string {
	if kind == "dispatcher" || kind == "worker" {
		return fmt.Sprintf("%s %d", kind, number+1)
	}
	return kind
}

// victim is a server, or one of the dispatchers or workers: which process that is changes with
// every kill.
type victim struct {
	s    *stack
	name string
	args []string // of a callq process

	mu      sync.Mutex // held while it is down: one fault at a time
	process *process   // of a dispatcher or worker
	former  []*process // killed ones
	others  []*victim  // of everything: all the others
}

func (v *victim) launch() error {
	p, err := v.s.launch(v.args...)
	if err != nil {
		return err
	}
	p.name = v.name
	v.process = p
	return nil
}

// killProcess kills a dispatcher or worker; another takes its place.
func (v *victim) killProcess() (func() error, error) {
	if err := v.alive(); err != nil {
		return nil, err
	}
	v.process.kill()
	v.former = append(v.former, v.process)
	return v.launch, nil
}

// freezeProcess stops a dispatcher or worker for a while.
func (v *victim) freezeProcess() (func() error, error) {
	if err := v.alive(); err != nil {
		return nil, err
	}
	p := v.process.cmd.Process
	return func() error { return p.Signal(syscall.SIGCONT) }, p.Signal(syscall.SIGSTOP)
}

// terminateProcess lets a dispatcher or worker drain; another takes its place.
func (v *victim) terminateProcess() (func() error, error) {
	if err := v.alive(); err != nil {
		return nil, err
	}
	p := v.process
	if err := p.says("msg="); err != nil { // before, it does not yet handle signals
		return nil, err
	}
	return func() error {
		select {
		case <-p.done:
		case <-time.After(30 * time.Second):
			return errors.New("it does not end")
		}
		v.former = append(v.former, p)
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			return errors.Join(fmt.Errorf("exit %d", code), v.launch())
		}
		return v.launch()
	}, p.cmd.Process.Signal(syscall.SIGTERM)
}

// alive says whether the process still runs: nothing but the test may end it.
func (v *victim) alive() error {
	select {
	case <-v.process.done:
		return fmt.Errorf("%s has ended by itself: %s", v.name, v.process.cmd.ProcessState)
	default:
		return nil
	}
}

func (v *victim) killRedis() (func() error, error) {
	v.s.redis.Kill()
	return func() error { return v.s.redis.Restart(context.Background()) }, nil
}

func (v *victim) flushRedis() (func() error, error) {
	options, err := redis.ParseURL(v.s.redis.URL())
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(options)
	defer client.Close()
	return func() error { return nil }, client.FlushAll(context.Background()).Err()
}

func (v *victim) freezeRedis() (func() error, error) {
	pid := v.s.redis.Pid()
	return func() error { return syscall.Kill(pid, syscall.SIGCONT) }, syscall.Kill(pid, syscall.SIGSTOP)
}

func (v *victim) quitPostgres() (func() error, error) {
	v.s.postgres.Kill()
	return v.restartPostgres, nil
}

// killPostgres kills the server and its backends, which are process groups of their own: it is
// stopped first, so that it neither forks nor cleans up meanwhile.
func (v *victim) killPostgres() (func() error, error) {
	pid := v.s.postgres.Pid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	children, err := childrenOf(pid)
	if err != nil {
		return nil, errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return nil, err
	}
	for _, child := range children {
		if err := syscall.Kill(child, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return nil, err
		}
	}
	return v.restartPostgres, nil
}

// killAll is a power cut, but for what the disk has not been given. The daemons come back before the
// servers do.
func (v *victim) killAll() (func() error, error) {
	var undos []func() error
	var failures error
	for _, other := range v.others {
		other.mu.Lock() // waits until it is up
	}
	for _, other := range v.others {
		strike := (*victim).killProcess
		switch other.name {
		case "redis":
			strike = (*victim).killRedis
		case "postgres":
			strike = (*victim).killPostgres
		}
		undo, err := strike(other)
		if err == nil {
			undos = append(undos, undo)
		}
		failures = errors.Join(failures, err)
	}
	return func() error {
		for _, undo := range undos {
			failures = errors.Join(failures, undo())
		}
		for _, other := range v.others {
			other.mu.Unlock()
		}
		return failures
	}, nil
}

// restartPostgres tries again while what was killed still holds the shared memory.
func (v *victim) restartPostgres() error {
	deadline := time.Now().Add(time.Minute)
	for {
		err := v.s.postgres.Restart(context.Background())
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-time.After(100 * time.Millisecond)
	}
}

// childrenOf reads which processes a process has forked.
func childrenOf(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var children []int
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid …, where the name may hold anything.
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(pid) {
			continue
		}
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		children = append(children, child)
	}
	return children, nil
}
