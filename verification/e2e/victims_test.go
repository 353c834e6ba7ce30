//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

// fault is one way to strike a victim. strike returns what undoes it.
type fault struct {
	name     string
	victim   string // dispatcher, worker, redis, postgres, everything, rows, clock or network
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
		{"restart", "postgres", 2, 0, time.Second, (*victim).stopPostgres},
		{"switchover", "postgres", 2, 0, time.Second, (*victim).switchOver},
		{"SIGKILL", "everything", 1, 0, 2 * time.Second, (*victim).killAll},
		{"lock", "rows", 3, 200 * time.Millisecond, 5 * time.Second, (*victim).lockRows},
		{"poison", "rows", 2, 0, 0, (*victim).insertPoison},
		{"9 s forward", "clock", 1, 0, 0, stepForward(9 * time.Second)},
		{"1.5 s forward", "clock", 1, 0, 0, stepForward(1500 * time.Millisecond)},
		{"1 s back", "clock", 1, 0, 0, step(-time.Second)},
		{"loss of packets", "network", 3, 2 * time.Second, 6 * time.Second, (*victim).losePackets},
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
		at += time.Second + time.Duration(random.Int64N(int64(4*time.Second)))
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

// victim is what is struck: a server, what lies on or between servers, or one of the dispatchers or workers. Which process
// that is changes with every kill.
type victim struct {
	s    *stack
	name string
	args []string // of a callq process

	mu      sync.Mutex // held while it is down: one fault at a time
	process *process   // of a dispatcher or worker
	former  []*process // killed ones
	others  []*victim  // of everything: all processes; else what must be up when it is struck
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

// killAll is a power cut, but for what the disk has not been given. The daemons come back before the
// servers do.
func (v *victim) killAll() (func() error, error) {
	var undos []func() error
	var failures error
	release := v.holdOthers()
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
		release()
		return failures
	}, nil
}
