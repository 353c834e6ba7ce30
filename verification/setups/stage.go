package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/callq/callq/internal/local"
)

// stage is where one set-up is brought up. What it has started ends with it, the last first.
type stage struct {
	name  string
	callq string // the built program
	dir   string // a folder of its own, which other users may pass through
	calls int    // that are to be made

	closers   []func()
	processes []*process
}

func (on *stage) later(what func()) { on.closers = append(on.closers, what) }

// close ends everything, and leaves the logs in the stage's folder.
func (on *stage) close() {
	for _, what := range slices.Backward(on.closers) {
		what()
	}
	for i, p := range on.processes {
		_, _ = ownFile(on.dir, fmt.Sprintf("%d-%s.log", i, p.name), p.log.String())
	}
}

// lastWords are the last lines of what callq's processes and others logged.
func (on *stage) lastWords() string {
	var text strings.Builder
	for _, p := range on.processes {
		if log := p.log.String(); log != "" {
			fmt.Fprintf(&text, "\n--- %s:\n%s", p.name, log[max(0, len(log)-700):])
		}
	}
	return text.String()
}

// process is a program that the stage has started.
type process struct {
	name string
	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{} // closed when it has ended
	own  func() *exec.Cmd
}

// logBuffer keeps what a process writes.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// start starts a program, and ends it with the stage.
func (on *stage) start(name string, command func() *exec.Cmd) (*process, error) {
	p := &process{name: name, log: &logBuffer{}, own: command}
	if err := p.begin(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	on.processes = append(on.processes, p)
	on.later(func() { p.end(syscall.SIGTERM) })
	return p, nil
}

// begin starts the program, which has ended or never run.
func (p *process) begin() error {
	p.cmd, p.done = p.own(), make(chan struct{})
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.WaitDelay = time.Second // what it has started may hold its output open
	if p.cmd.SysProcAttr == nil {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p.cmd.SysProcAttr.Setpgid = true // a Ctrl-C is for this program, which ends the others
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	return nil
}

// end ends the program, by force if the signal has not done it.
func (p *process) end(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// until waits until something holds, for a minute at most.
func until(ctx context.Context, what string, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return wait(ctx, what, holds)
}

// wait is until for as long as ctx.
func wait(ctx context.Context, what string, holds func() error) error {
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("not in time: %s: %w", what, err)
		}
	}
}

// freePort is a port of the loopback interface that nobody listens on.
func freePort() (string, error) {
	ports, err := freePorts(1)
	if err != nil {
		return "", err
	}
	return ports[0], nil
}

// freePorts are several. None is one that the system gives to clients: one of those could take the port of a server that is away.
func freePorts(n int) (ports []string, err error) {
	const first, last = 15000, 32000
	var listeners []net.Listener // all are open at once: no port comes twice
	defer func() {
		for _, listener := range listeners {
			_ = listener.Close()
		}
	}()
	for range 100 * n {
		port := strconv.Itoa(first + rand.IntN(last-first))
		var listener net.Listener
		if listener, err = net.Listen("tcp", "127.0.0.1:"+port); err != nil { //nolint:noctx // closed at once
			continue
		}
		listeners, ports = append(listeners, listener), append(ports, port)
		if len(ports) == n {
			return ports, nil
		}
	}
	return nil, err
}

// asPostgres is how a program runs as the user postgres, which servers ask for that refuse to run as root. Any other user than
// root runs them.
func asPostgres() (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return &syscall.SysProcAttr{}, nil
	}
	found, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// folder makes a folder of the user postgres.
func (on *stage) folder(name string) (string, error) {
	dir := filepath.Join(on.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	as, err := asPostgres()
	if err != nil || as.Credential == nil {
		return dir, err
	}
	return dir, os.Chown(dir, int(as.Credential.Uid), int(as.Credential.Gid))
}

// file writes a file that the user postgres can read.
func file(dir, name, text string) (string, error) {
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", err
	}
	as, err := asPostgres()
	if err != nil || as.Credential == nil {
		return path, err
	}
	return path, os.Chown(path, int(as.Credential.Uid), int(as.Credential.Gid))
}

// startAsPostgres starts a program of Debian's as the user postgres, in a folder.
func (on *stage) startAsPostgres(dir, binary string, args ...string) (*process, error) {
	program, err := local.Find(binary, []string{binary})
	if err != nil {
		return nil, err
	}
	as, err := asPostgres()
	if err != nil {
		return nil, err
	}
	return on.start(binary, func() *exec.Cmd {
		cmd := program.Command(context.Background(), binary, args...)
		attr := *as
		cmd.Dir, cmd.SysProcAttr = dir, &attr
		return cmd
	})
}
