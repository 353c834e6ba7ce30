// Package local brings up a Postgres and a Redis of one's own, in a folder, for tests, demo and
// dev.
//
// Each is a direct child of this process on a unix socket: nothing listens on the network, no
// port is taken, no other server is touched. On Linux a child ends with the process that started
// it, even when that is killed with SIGKILL; elsewhere it may stay then, and its folder stays
// locked for as long as it does. Binaries are found or installed (see wanted). It runs as root
// (Postgres then runs as another user) and as an ordinary user. Not for production.
package local

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

const (
	startWithin = time.Minute      // a start, recovery after a crash included
	stopWithin  = 20 * time.Second // an orderly stop, before the child is killed
	killWithin  = 5 * time.Second  // an immediate stop, before the child is killed
	pollEvery   = 20 * time.Millisecond
)

var errStopped = errors.New("already stopped")

// await calls try until it succeeds, c ends or ctx does. When it fails c has ended, and the error
// carries the last lines that c wrote.
func await(ctx context.Context, c *child, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.ended:
			return fmt.Errorf("ended at once: %w\n%s", c.err, c.lines)
		case <-ctx.Done():
			c.end(killSignal, 0)
			return fmt.Errorf("not ready: %w (%w)\n%s", context.Cause(ctx), err, c.lines)
		case <-time.After(pollEvery):
		}
	}
}

// escapePath escapes a path for a URL's path or query, and leaves it readable.
func escapePath(path string) string {
	return strings.NewReplacer("&", "%26", "+", "%2B", ";", "%3B").Replace((&url.URL{Path: path}).EscapedPath())
}
