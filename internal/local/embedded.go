package local

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// embedded is a simulated Redis inside this process. Like the real one here it keeps nothing over
// a restart. It listens on loopback, which every user of the machine reaches: so it asks for a password.
type embedded struct {
	addr    string // kept over a restart, as the password is
	secret  string
	server  *miniredis.Miniredis
	stopped chan struct{} // closed by stop; nil while none runs
	ticking sync.WaitGroup
}

func newEmbedded() *embedded { return &embedded{addr: "127.0.0.1:0", secret: rand.Text()} }

func (e *embedded) start() (url string, err error) {
	e.server = miniredis.NewMiniRedis()
	e.server.RequireAuth(e.secret)
	if err := e.server.StartAddr(e.addr); err != nil {
		return "", err
	}
	e.addr = e.server.Addr()
	e.stopped = make(chan struct{})
	e.ticking.Go(e.passTime)
	return "redis://:" + e.secret + "@" + e.addr, nil
}

// passTime lets keys expire: in the simulation no time passes by itself.
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

func (e *embedded) stop() {
	if e.stopped == nil {
		return
	}
	close(e.stopped)
	e.ticking.Wait()
	e.server.Close()
	e.stopped = nil
}
