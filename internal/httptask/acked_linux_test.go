package httptask

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"golang.org/x/sys/unix"
)

// A request that is not answered soon is known to be with the API's machine once that has acknowledged it, and where
// the answer takes long that is told.
//
//callq:guarantee 1
func TestAcknowledged(t *testing.T) {
	t.Parallel()
	gate, peer, p := admitted(t)
	told := make(chan time.Time, 10)
	p.arrived = func(acked, _ time.Time) { told <- acked }
	acked := func() time.Time {
		gate.mu.Lock()
		defer gate.mu.Unlock()
		return p.acked
	}
	begun := time.Now()
	if _, err := io.WriteString(gate, bareRequest); err != nil {
		t.Fatal(err)
	}
	if !acked().IsZero() {
		t.Error("acknowledged before anybody asked")
	}
	if at := receive(t, told); at.Before(begun) || !at.Equal(acked()) || time.Since(begun) < tellAfter {
		t.Errorf("told after %s that it was acknowledged after %s, after %s", time.Since(begun), at.Sub(begun), acked().Sub(begun))
	}
	// More of the request is on its way again.
	if _, err := io.WriteString(gate, "more"); err != nil {
		t.Fatal(err)
	}
	if !acked().IsZero() {
		t.Error("what was written last counts as acknowledged")
	}
	receiveAnswer(t, gate, peer)
	// The answer's body may take long, too.
	if at := receive(t, told); at.Before(begun) {
		t.Errorf("acknowledged at %s", at)
	}
	if got := p.end(true); got.sent.IsZero() || got.answered.IsZero() {
		t.Errorf("end = %+v", got)
	}
}

// What the other side's machine has no room for is not acknowledged.
//
//callq:guarantee 1
func TestNotAcknowledged(t *testing.T) {
	t.Parallel()
	gate, peer, p := admitted(t)
	_ = peer.SetReadBuffer(4 << 10)
	_ = gate.raw.SetWriteBuffer(8 << 20)
	go func() { _, _ = io.WriteString(gate, bareRequest+strings.Repeat("x", 64<<20)) }()
	eventually(t, "something is not acknowledged", func() bool {
		n, err := unacked(gate.raw)
		return n > 0 || err != nil
	})
	if !p.end(false).acked.IsZero() {
		t.Error("it counts as acknowledged")
	}
}

// What nobody acknowledges the kernel sends again for as long as limits count on, and no longer.
//
//callq:guarantee 1
func TestSentAgainForSoLong(t *testing.T) {
	t.Parallel()
	gate, _ := gatedPair(t)
	var ms int
	err := withSocket(gate.raw, func(fd int) (err error) {
		ms, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		return err
	})
	if got := time.Duration(ms) * time.Millisecond; err != nil || got != limit.ResendMost {
		t.Errorf("TCP_USER_TIMEOUT is %s (%v), want %s", got, err, limit.ResendMost)
	}
}
