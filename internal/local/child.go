package local

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const killSignal = syscall.SIGKILL

// child is a running server. It ends with this process (on Linux).
type child struct {
	process *os.Process
	ended   chan struct{} // closed when it has ended and was reaped
	err     error         // how it ended; read after ended
	lines   *tail         // what it wrote last
}

// startChild starts cmd with its output going to out (which may be nil). When this process dies
// the child is sent orphan.
func startChild(cmd *exec.Cmd, orphan syscall.Signal, out io.Writer) (*child, error) {
	c := &child{ended: make(chan struct{}), lines: &tail{out: out}}
	cmd.Stdout, cmd.Stderr = c.lines, c.lines
	cmd.WaitDelay = time.Second // its own children may hold the pipe a little longer
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for this process, which stops its servers itself
	dieWithParent(cmd.SysProcAttr, orphan)

	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that forked for the end of the parent, so this
		// goroutine holds its thread for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		c.process = cmd.Process
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// end sends sig and waits; what has not ended within the time given is killed. It is harmless
// where the child has ended.
func (c *child) end(sig syscall.Signal, within time.Duration) {
	_ = c.process.Signal(sig) // fails only if it has ended
	select {
	case <-c.ended:
	case <-time.After(within):
		_ = c.process.Kill()
		<-c.ended
	}
}

// tail keeps the last lines written to it and passes everything on.
type tail struct {
	out io.Writer

	mu   sync.Mutex
	kept []byte // guarded by mu
}

const tailBytes = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = append([]byte(nil), t.kept[over:]...)
		if _, rest, found := bytes.Cut(t.kept, []byte("\n")); found {
			t.kept = rest
		}
	}
	if t.out != nil {
		_, _ = t.out.Write(p) // a log that cannot be written must not stop the server
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.kept))
}
