package console

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/callq/callq/internal/access"
)

// live sends pages again when they change, as events (Server-Sent Events). A page is read once for all who look at it with the same
// role, at most once a second, and no more often than it is cheap.
type live struct {
	pages *pages

	mu    sync.Mutex
	feeds map[feedKey]*feed
}

type feedKey struct {
	uri  string
	role access.Role
}

// feed is a page that somebody looks at.
type feed struct {
	viewers map[chan []byte]bool // Each gets the newest body: an older one that it has not taken is replaced.
	newest  []byte
	stop    context.CancelFunc
}

const (
	liveEvery = time.Second
	// liveShare bounds the part of the time in which a page is read: one that takes long is read more seldom, but each liveLatest.
	liveShare  = 0.02
	liveLatest = 5 * time.Second
	mostFeeds  = 200
	// liveFor is when a browser has to come in anew: somebody may have lost their login.
	liveFor = 10 * time.Minute
)

func newLive(p *pages) *live { return &live{pages: p, feeds: map[feedKey]*feed{}} }

// serve sends the body of the page that is asked for, each time that it changes.
func (l *live) serve(w http.ResponseWriter, r *http.Request) {
	uri := r.URL.Query().Get("page")
	asked, err := url.ParseRequestURI(uri)
	if err != nil || !strings.HasPrefix(uri, "/") || strings.HasPrefix(uri, "//") || asked.Path == "/live" {
		http.Error(w, "page: it is no page's address", http.StatusBadRequest)
		return
	}
	bodies, leave := l.join(r, uri)
	if bodies == nil {
		http.Error(w, "too many pages are watched: close some", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back
	out := http.NewResponseController(w)
	idle := time.NewTicker(20 * time.Second)
	defer idle.Stop()
	over := time.After(liveFor)
	for {
		var event bytes.Buffer
		select {
		case <-r.Context().Done():
			return
		case <-over:
			return
		case <-idle.C: // so that a client that is gone is noticed, and proxies keep the connection
			event.WriteString(": here\n\n")
		case body := <-bodies:
			for line := range bytes.Lines(body) {
				fmt.Fprintf(&event, "data: %s\n", bytes.TrimRight(line, "\r\n"))
			}
			event.WriteByte('\n')
		}
		if _, err := w.Write(event.Bytes()); err != nil || out.Flush() != nil {
			return
		}
	}
}

// join has a viewer see a page, until it leaves; nil: too many are seen.
func (l *live) join(r *http.Request, uri string) (<-chan []byte, func()) {
	who := access.Of(r.Context())
	key, bodies := feedKey{uri, who.Role}, make(chan []byte, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.feeds[key]
	if f == nil {
		if len(l.feeds) == mostFeeds {
			return nil, nil
		}
		ctx, stop := context.WithCancel(access.As(context.WithoutCancel(r.Context()), who))
		f = &feed{viewers: map[chan []byte]bool{}, stop: stop}
		l.feeds[key] = f
		go l.run(ctx, uri, f)
	}
	f.viewers[bodies] = true
	if f.newest != nil {
		bodies <- f.newest
	}
	return bodies, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(f.viewers, bodies); len(f.viewers) == 0 {
			f.stop()
			delete(l.feeds, key)
		}
	}
}

// run reads a page as long as somebody looks at it.
func (l *live) run(ctx context.Context, uri string, f *feed) {
	took := liveLatest // the least of late: on a busy machine most of a reading is waiting
	for {
		began := time.Now()
		body := l.read(ctx, uri)
		took = min(time.Since(began), took+took/8)
		wait := min(max(liveEvery, time.Duration(float64(took)/liveShare)), liveLatest)
		l.mu.Lock()
		if body != nil && !bytes.Equal(body, f.newest) {
			f.newest = body
			for viewer := range f.viewers {
				select { // takes back what a slow viewer has not taken
				case <-viewer:
				default:
				}
				viewer <- body
			}
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// read renders a page, and returns what its main element holds; nil: it cannot be read now.
func (l *live) read(ctx context.Context, uri string) []byte {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, uri, nil) //nolint:gosec // it is served here, and goes nowhere
	if err != nil {
		return nil
	}
	w := &kept{header: http.Header{}, status: http.StatusOK}
	l.pages.mux.ServeHTTP(w, r)
	_, body, found := bytes.Cut(w.Bytes(), []byte("<main>\n"))
	body, _, end := bytes.Cut(body, []byte("\n</main>"))
	if w.status != http.StatusOK || !found || !end || !bytes.Contains(w.Bytes(), []byte(" data-live=")) { // of others nothing is sent
		return nil
	}
	return body
}

// kept is an answer that is not sent.
type kept struct {
	bytes.Buffer
	header http.Header
	status int
}

func (k *kept) Header() http.Header    { return k.header }
func (k *kept) WriteHeader(status int) { k.status = status }
