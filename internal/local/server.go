// Package local runs a Postgres and a Redis for demo, dev and tests. It is not for production.
//
// A server is a child of this process, on a unix socket in a folder of its own: it opens no port and
// touches no other server. On Linux it ends with the process that started it, even after SIGKILL.
// Elsewhere it may outlive that process, and its folder stays locked for as long as it does.
//
// The package finds servers that are installed; it installs none. Root may use it: Postgres, which
// refuses to run as root, then runs as another user.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startWithin = time.Minute      // a start, including recovery after a crash
	stopWithin  = 20 * time.Second // an orderly stop, before the server is killed
	killWithin  = 5 * time.Second  // an immediate stop, before the server is killed
	pollEvery   = 20 * time.Millisecond
)

// server is a process in a folder: what a Postgres and a Redis have in common. Its methods may be called
// at any time.
type server struct {
	name    string
	folder  folder
	log     io.Writer                       // receives what the server writes; may be nil
	stopBy  syscall.Signal                  // asks for an orderly stop
	killBy  syscall.Signal                  // ends it as a crash does
	command func(context.Context) *exec.Cmd // starts it
	ready   func(context.Context) error     // fails until it answers

	mu      sync.Mutex    // guards what follows
	process *os.Process   // of the last start
	ended   chan struct{} // closed when that has ended
	err     error         // how it ended; read after ended
	output  *tail         // what it wrote last; read after ended
}

// open takes the folder, lets prepare fill it, and starts the server.
func (s *server) open(ctx context.Context, dir string, prepare func(context.Context) error) error {
	err := s.folder.open(ctx, dir)
	if err == nil {
		err = prepare(ctx)
	}
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, errors.Join(err, s.folder.close()))
	}
	return nil
}

// start starts the server and waits until it is ready. Its caller holds mu, or owns the server.
func (s *server) start(ctx context.Context) error {
	cmd := s.command(context.WithoutCancel(ctx)) // ctx bounds the start, not the server's life
	s.output = &tail{out: s.log}
	cmd.Stdout, cmd.Stderr = s.output, s.output
	cmd.WaitDelay = time.Second // its own children may hold the pipe a little longer
	cmd.ExtraFiles = []*os.File{s.folder.lock}
	cmd.SysProcAttr.Setpgid = true // Ctrl-C is for this process, which stops its servers itself
	dieWithParent(cmd.SysProcAttr, s.killBy)

	started, ended := make(chan error), make(chan struct{})
	go func() {
		// To the kernel, the parent is the thread that forked: this goroutine keeps its thread for as
		// long as the server lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			s.err = cmd.Wait()
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.process, s.ended = cmd.Process, ended
	return s.await(ctx)
}

// await waits until the server is ready. Where it gives up, the server has ended, and the error carries what
// the server wrote last.
func (s *server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("ended at once: %w\n%s", s.err, s.output.kept)
		case <-ctx.Done():
			s.end(syscall.SIGKILL, 0)
			return fmt.Errorf("not ready: %w (%w)\n%s", context.Cause(ctx), err, s.output.kept)
		case <-time.After(pollEvery):
		}
	}
}

// end sends sig and waits. A server that has not ended in time is killed; one that has ended is left alone.
func (s *server) end(sig syscall.Signal, within time.Duration) {
	_ = s.process.Signal(sig) // fails only if it has ended
	select {
	case <-s.ended:
	case <-time.After(within):
		_ = s.process.Kill()
		<-s.ended
	}
}

// Pid returns the server's process id, which Restart changes.
func (s *server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.Pid
}

// Stop stops the server in order and removes its folder if that is temporary. A second Stop does nothing.
func (s *server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(s.stopBy, stopWithin)
	return s.folder.close()
}

// Kill ends the server as a crash does. Its folder stays: Restart starts the server again, Stop gives
// the folder up.
func (s *server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(s.killBy, killWithin)
}

// Restart stops the server in order, unless Kill has ended it, and starts it on the same folder and URL.
func (s *server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(s.stopBy, stopWithin)
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart %s: %w", s.name, err)
	}
	return nil
}

// maxSocketPath is the longest path of a socket on any system (macOS: 104 bytes with the final zero).
const maxSocketPath = 103

// folder holds the files of one server. This process locks it, and the server inherits the lock: so two
// servers never share a folder, and a temporary one that is not locked may be removed.
type folder struct {
	path      string
	lock      *os.File
	temporary []string // removed by close
}

// open makes and locks path, or a temporary folder if path is empty. It waits briefly for a server that is
// about to end.
func (f *folder) open(ctx context.Context, path string) (err error) {
	if path == "" {
		sweep()
		f.path, err = f.temp()
	} else {
		f.path, err = filepath.Abs(path)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	for {
		f.lock, err = lockFile(f.path, "lock")
		if !errors.Is(err, errLocked) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is in use by another server", f.path)
		case <-time.After(pollEvery):
		}
	}
}

// temp makes a folder with a short name that other users may pass through; close removes it.
func (f *folder) temp() (string, error) {
	dir, err := os.MkdirTemp("", "callq-")
	if err != nil {
		return "", err
	}
	f.temporary = append(f.temporary, dir)
	return dir, os.Chmod(dir, 0o711)
}

// forSocket returns dir, or a temporary folder if the socket's path in dir would be too long.
func (f *folder) forSocket(dir, socket string) (string, error) {
	if len(filepath.Join(dir, socket)) <= maxSocketPath {
		return dir, nil
	}
	return f.temp()
}

func (f *folder) close() error {
	var errs []error
	for _, dir := range f.temporary {
		errs = append(errs, os.RemoveAll(dir))
	}
	_ = f.lock.Close() // it may be closed already, or none
	return errors.Join(errs...)
}

// sweep removes the temporary folders of processes that were killed.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "callq-*")) // fails for a bad pattern only
	for _, dir := range dirs {
		info, err := os.Stat(filepath.Join(dir, "lock"))
		if err != nil || time.Since(info.ModTime()) < time.Minute { // its owner may be about to lock it
			continue
		}
		if lock, err := lockFile(dir, "lock"); err == nil {
			_ = os.RemoveAll(dir) // best effort: the next start tries again
			_ = lock.Close()
		}
	}
}

var errLocked = errors.New("locked")

// lockFile locks a file in a folder, and makes both. It returns errLocked where another process has.
func lockFile(dir, name string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil { // the user that Postgres runs as passes through
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil && syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil, errors.Join(errLocked, file.Close())
	}
	return file, err
}

// tail keeps the end of what is written to it and passes everything on.
type tail struct {
	out  io.Writer // may be nil
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-2048):]
	if t.out != nil {
		_, _ = t.out.Write(p) // a log that cannot be written must not stop the server
	}
	return len(p), nil
}

// escapePath escapes a path for a URL and keeps it readable.
func escapePath(path string) string {
	return strings.NewReplacer("&", "%26", "+", "%2B", ";", "%3B").Replace((&url.URL{Path: path}).EscapedPath())
}
