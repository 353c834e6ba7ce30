package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// process is the program as a process of its own, which is killed when the test ends.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	log *buffer
	dir string // of its config.yaml
}

// command is a process that has not been started.
func (w world) command(args ...string) *process {
	w.t.Helper()
	environ := w.environ()
	p := &process{t: w.t, log: new(buffer), cmd: exec.CommandContext(w.t.Context(), os.Args[0], args...)}
	for _, e := range environ {
		if path, ok := strings.CutPrefix(e, "CALLQ_CONFIG="); ok {
			p.dir = filepath.Dir(path)
		}
	}
	p.cmd.Env, p.cmd.Stderr = append(environ, beCallq+"=1"), p.log
	return p
}

func (p *process) start() *process {
	p.t.Helper()
	must(p.t, p.cmd.Start())
	p.t.Cleanup(p.kill)
	return p
}

// spawn starts a process.
func (w world) spawn(args ...string) *process { w.t.Helper(); return w.command(args...).start() }

// ready waits until it is.
func (p *process) ready() *process { p.t.Helper(); awaitReady(p.t, addressIn(p.t, p.log)); return p }

func (p *process) says(words string) {
	p.t.Helper()
	eventually(p.t, "the log says "+words, func() bool { return strings.Contains(p.log.String(), words) })
}

func (p *process) send(sig os.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(sig))
}

func (p *process) file() string { return filepath.Join(p.dir, "config.yaml") }

// reload writes its configuration and sends SIGHUP.
func (p *process) reload(text string) {
	p.t.Helper()
	must(p.t, os.WriteFile(p.file(), []byte(text), 0o600))
	p.send(syscall.SIGHUP)
}

// exits waits for its end and wants its exit code.
func (p *process) exits(code int) {
	p.t.Helper()
	ended := make(chan struct{})
	go func() { _ = p.cmd.Wait(); close(ended) }() // its error is the exit code
	receive(p.t, ended, "the process ends")
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, want %d\n%s", got, code, p.log)
	}
}

// kill ends it as a crash does; harmless where it has ended.
func (p *process) kill() {
	if p.cmd.Process != nil && p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // its error says that it was killed
	}
}
