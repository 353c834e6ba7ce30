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
	"net/url"
	"strings"
	"time"
)

const (
	startWithin = time.Minute      // a start, including recovery after a crash
	stopWithin  = 20 * time.Second // an orderly stop, before the server is killed
	killWithin  = 5 * time.Second  // an immediate stop, before the server is killed
	pollEvery   = 20 * time.Millisecond
)

// escapePath escapes a path for a URL and keeps it readable.
func escapePath(path string) string {
	return strings.NewReplacer("&", "%26", "+", "%2B", ";", "%3B").Replace((&url.URL{Path: path}).EscapedPath())
}
