package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// StartAnyRedis starts Redis or, where none is installed, miniredis inside this process, with a warning in
// the log. It returns the URL and a function that stops the server.
func StartAnyRedis(ctx context.Context, cfg Redis, log *slog.Logger) (url string, stop func() error, err error) {
	server, err := StartRedis(ctx, cfg)
	switch {
	case err == nil:
		return server.URL(), server.Stop, nil
	case !errors.Is(err, ErrMissing):
		return "", nil, err
	}
	log.WarnContext(ctx, "redis-server not found: a simulation stands in")
	e, err := startEmbedded()
	if err != nil {
		return "", nil, err
	}
	return e.url, e.stop, nil
}

// embedded is a miniredis on a port of the loopback interface. Every user of the machine can reach that,
// so it asks for a password.
type embedded struct {
	url     string
	server  *miniredis.Miniredis
	stopped chan struct{} // closed by stop
	ticking sync.WaitGroup
}

func startEmbedded() (*embedded, error) {
	secret := rand.Text()
	e := &embedded{server: miniredis.NewMiniRedis(), stopped: make(chan struct{})}
	e.server.RequireAuth(secret)
	if err := e.server.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start miniredis: %w", err)
	}
	e.url = "redis://:" + secret + "@" + e.server.Addr()
	e.ticking.Go(e.passTime)
	return e, nil
}

// passTime lets keys expire: miniredis has no clock.
func (e *embedded) passTime() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-e.stopped:
			return
		case now := <-tick.C:
			e.server.FastForward(now.Sub(last))
			last = now
		}
	}
}

func (e *embedded) stop() error {
	close(e.stopped)
	e.ticking.Wait()
	e.server.Close()
	return nil
}
