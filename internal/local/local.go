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
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startWithin = time.Minute      // a start, including recovery after a crash
	stopWithin  = 20 * time.Second // an orderly stop, before the child is killed
	killWithin  = 5 * time.Second  // an immediate stop, before the child is killed
	pollEvery   = 20 * time.Millisecond
)

var errStopped = errors.New("already stopped")

// server is what a Postgres and a Redis have in common. Its methods may be called at any time.
type server struct {
	name   string
	folder *folder
	log    io.Writer      // receives what the server writes; may be nil
	stopBy syscall.Signal // asks for an orderly stop
	killBy syscall.Signal // ends it as a crash does

	command func(context.Context) *exec.Cmd
	ready   func(context.Context) error // whether it answers

	mu      sync.Mutex
	child   *child // the running server; nil before the first start
	stopped bool
}

// start starts the server and waits until it is ready. Its caller holds mu, or owns the server.
func (s *server) start(ctx context.Context) error {
	cmd := s.command(context.WithoutCancel(ctx)) // ctx bounds the start, not the server's life
	cmd.ExtraFiles = []*os.File{s.folder.lock}
	c, err := startChild(cmd, s.killBy, s.log)
	if err != nil {
		return err
	}
	s.child = c
	return c.await(ctx, s.ready)
}

// Pid returns the server's process id, which Restart changes.
func (s *server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child.process.Pid
}

// Stop stops the server in order and removes its folder if that is temporary. A second Stop does nothing.
func (s *server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	s.child.end(s.stopBy, stopWithin)
	return s.folder.close()
}

// Kill ends the server as a crash does. Its folder stays: Restart starts the server again, Stop gives
// the folder up.
func (s *server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child.end(s.killBy, killWithin)
}

// Restart stops the server in order, unless Kill has ended it, and starts it on the same folder and URL.
func (s *server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("restart %s: %w", s.name, errStopped)
	}
	s.child.end(s.stopBy, stopWithin)
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart %s: %w", s.name, err)
	}
	return nil
}

// escapePath escapes a path for a URL and keeps it readable.
func escapePath(path string) string {
	return strings.NewReplacer("&", "%26", "+", "%2B", ";", "%3B").Replace((&url.URL{Path: path}).EscapedPath())
}
