package tasks

import (
	"io"
	"strings"
	"testing"
	"time"
)

// A request that is not answered soon is known to be with the API's machine once that has acknowledged it.
func TestAcknowledged(t *testing.T) {
	t.Parallel()
	gate, peer := gatedPair(t)
	p := newPass(t)
	if err := gate.admit(p, time.Time{}); err != nil {
		t.Fatal(err)
	}
	acked := func() time.Time {
		gate.mu.Lock()
		defer gate.mu.Unlock()
		return p.acked
	}
	if _, err := io.WriteString(gate, bareRequest); err != nil {
		t.Fatal(err)
	}
	if !acked().IsZero() {
		t.Error("acknowledged before anybody asked")
	}
	for deadline := time.Now().Add(bound); acked().IsZero(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is never seen to be acknowledged")
		}
	}
	// More of the request is on its way again.
	if _, err := io.WriteString(gate, "more"); err != nil {
		t.Fatal(err)
	}
	if !acked().IsZero() {
		t.Error("what was written last counts as acknowledged")
	}
	if _, err := io.WriteString(peer, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := gate.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, sent, acked, answered := p.end(true); sent.IsZero() || !acked.IsZero() || answered.IsZero() {
		t.Errorf("end: sent %v, acknowledged %v, answered %v", sent, acked, answered)
	}
}

// What the other side's machine has no room for is not acknowledged.
func TestNotAcknowledged(t *testing.T) {
	t.Parallel()
	gate, peer := gatedPair(t)
	_ = peer.SetReadBuffer(4 << 10)
	_ = gate.raw.SetWriteBuffer(8 << 20)
	p := newPass(t)
	if err := gate.admit(p, time.Time{}); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(gate, bareRequest+strings.Repeat("x", 64<<20)) }()
	for deadline := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		if n, err := unacked(gate.raw); err != nil || n > 0 {
			if err != nil {
				t.Error(err)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("all of it is acknowledged")
		}
	}
	if _, _, acked, _ := p.end(false); !acked.IsZero() {
		t.Error("it counts as acknowledged")
	}
}
