package dispatcher

import (
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
)

// A connection that is dead though nothing says so, since whatever stands between swallows all, is noticed, and replaced by one that
// hears again.
func TestListenNoticesADeadConnection(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	config := pool.Config().ConnConfig.Copy()
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	var swallowed, listens atomic.Int32
	asked := make(chan struct{})
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		server, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			_, _ = io.Copy(server, io.TeeReader(theirs, pings(asked)))
		}()
		go func() {
			defer server.Close()
			for buffer := make([]byte, 4096); ; {
				n, err := server.Read(buffer)
				if err != nil {
					return
				}
				if strings.Contains(string(buffer[:n]), "LISTEN") && listens.Add(1) == 1 { // dead, once it listens
					_, _ = theirs.Write(buffer[:n])
					for n, err = 1, nil; err == nil; n, err = server.Read(buffer) {
						swallowed.Add(int32(n))
					}
					return
				}
				_, _ = theirs.Write(buffer[:n])
			}
		}()
		return ours, nil
	}
	a := &alarm{notified: make(chan struct{}, 1), askEvery: 50 * time.Millisecond, askWithin: time.Second}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.listen(ctx, config, schema.Names{}, slog.New(slog.DiscardHandler)) }()
	defer func() { stop(); <-ended }()
	hear := func() {
		t.Helper()
		select {
		case <-a.notified:
		case <-time.After(time.Minute):
			t.Fatal("nothing was heard")
		}
	}
	hear() // the first listens
	hear() // the second does
	if n := listens.Load(); n != 2 || swallowed.Load() == 0 {
		t.Fatalf("%d connections listened, %d bytes swallowed", n, swallowed.Load())
	}
	for range 3 { // silence is no end
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatal("it was not asked for an answer")
		}
	}
	if _, err := pool.Exec(t.Context(), `NOTIFY callq_wake`); err != nil {
		t.Fatal(err)
	}
	hear()
	if n := listens.Load(); n != 2 {
		t.Errorf("%d connections listened", n)
	}
}

// A dispatcher that stands by leaves wakes to the one that claims: it does not even note them, for which that one's claim would wait.
// Units that came free, and that a worker came, it remembers.
func TestStandbyLeavesWakes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	a := &alarm{notified: make(chan struct{}, 1), askEvery: time.Minute, askWithin: time.Second}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.listen(ctx, pool.Config().ConnConfig, schema.Names{}, slog.New(slog.DiscardHandler))
	}()
	defer func() { stop(); <-ended }()
	<-a.notified // it listens
	a.freed.Store(false)
	a.standsBy.Store(true)
	for _, said := range []string{"", callqueue.WakeJoined, callqueue.WakeFreed} {
		if _, err := pool.Exec(ctx, `SELECT pg_notify('callq_wake', $1)`, said); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(time.Minute); !a.freed.Load(); { // what is said is heard in order
		if time.Now().After(end) {
			t.Fatal("it heard nothing")
		}
		runtime.Gosched()
	}
	if !a.joined.Load() {
		t.Error("it did not remember that a worker came")
	}
	var noted *int64
	if err := pool.QueryRow(ctx, `SELECT pg_sequence_last_value('callq.call_wake_seq')`).Scan(&noted); err != nil || noted != nil {
		t.Errorf("a wake was noted at %v (%v)", noted, err)
	}
	select {
	case <-a.notified:
		t.Error("the loop was woken")
	default:
	}
	a.standsBy.Store(false)
	if _, err := pool.Exec(ctx, `NOTIFY callq_wake`); err != nil {
		t.Fatal(err)
	}
	<-a.notified
}

// pings tells whoever waits that a connection is asked for an answer.
type pings chan struct{}

func (told pings) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "-- ping") {
		select {
		case told <- struct{}{}:
		default:
		}
	}
	return len(p), nil
}
