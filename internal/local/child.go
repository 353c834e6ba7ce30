package local

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// child is a running process. On Linux it ends with this one.
type child struct {
	process *os.Process
	ended   chan struct{} // closed when it has ended and was reaped
	err     error         // how it ended; read after ended
	output  *tail         // its last lines
}

// startChild starts cmd, whose output goes to out unless that is nil. When this process dies, the child
// is sent orphan.
func startChild(cmd *exec.Cmd, orphan syscall.Signal, out io.Writer) (*child, error) {
	c := &child{ended: make(chan struct{}), output: &tail{out: out}}
	cmd.Stdout, cmd.Stderr = c.output, c.output
	cmd.WaitDelay = time.Second // its own children may hold the pipe a little longer
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for this process, which stops its servers itself
	dieWithParent(cmd.SysProcAttr, orphan)

	started := make(chan error)
	go func() {
		// To the kernel, the parent is the thread that forked: this goroutine keeps its thread for as
		// long as the child lives.
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

// end sends sig and waits. A child that has not ended in time is killed; one that has ended is left alone.
func (c *child) end(sig syscall.Signal, within time.Duration) {
	_ = c.process.Signal(sig) // fails only if it has ended
	select {
	case <-c.ended:
	case <-time.After(within):
		_ = c.process.Kill()
		<-c.ended
	}
}

// await calls ready until it succeeds. Where it gives up, the child has ended, and the error carries the
// child's last lines.
func (c *child) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.ended:
			return fmt.Errorf("ended at once: %w\n%s", c.err, c.output)
		case <-ctx.Done():
			c.end(syscall.SIGKILL, 0)
			return fmt.Errorf("not ready: %w (%w)\n%s", context.Cause(ctx), err, c.output)
		case <-time.After(pollEvery):
		}
	}
}

// tail keeps the end of what is written to it and passes everything on.
type tail struct {
	out io.Writer // may be nil

	mu   sync.Mutex
	kept []byte // guarded by mu
}

const tailBytes = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = bytes.Clone(t.kept[over:])
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
