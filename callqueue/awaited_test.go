package callqueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// While Postgres is away each wait lasts as long, whenever it begins, and fails with what is wrong then.
func TestAwaitedWhileAway(t *testing.T) {
	t.Parallel()
	start := time.Now()
	call := func(since time.Duration) *awaitedCall {
		at := start.Add(since)
		return &awaitedCall{waiters: 1, since: at, next: at, answered: at, ended: make(chan struct{})}
	}
	early, late := call(0), call(29*time.Second)
	w := &awaited{calls: map[int64]*awaitedCall{1: early, 2: late}}
	asked := []int64{1, 2}
	over := func(c *awaitedCall) bool {
		select {
		case <-c.ended:
			return true
		default:
			return false
		}
	}
	if w.tell(start.Add(29*time.Second), asked, nil, errSilent); over(early) || over(late) {
		t.Error("given up within 30 s")
	}
	if w.tell(start.Add(30*time.Second), asked, nil, errSilent); !over(early) || over(late) {
		t.Errorf("after 30 s the early one is over: %v, the late one: %v", over(early), over(late))
	}
	if !errors.Is(early.err, errSilent) || errors.Is(early.err, context.DeadlineExceeded) {
		t.Errorf("it ended with %v", early.err)
	}
	w.tell(start.Add(50*time.Second), asked, []int64{2}, nil)
	if w.tell(start.Add(79*time.Second), asked, nil, io.ErrUnexpectedEOF); over(late) {
		t.Error("given up within 30 s of an answer")
	}
	if w.tell(start.Add(80*time.Second), asked, nil, errors.New("no such column")); !over(late) {
		t.Error("an error that stays is no outage")
	}
}

// What passes is asked again; what stays is said at once.
func TestIsAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		away bool
	}{
		{&pgconn.PgError{Code: "57P01"}, true},
		{&pgconn.PgError{Code: "08006"}, true},
		{&pgconn.PgError{Code: "53300"}, true},
		{fmt.Errorf("read: %w", &pgconn.ConnectError{}), true},
		{fmt.Errorf("read: %w", io.ErrUnexpectedEOF), true},
		{errSilent, true},
		{fmt.Errorf("read: %w", pgconn.ErrConnClosed), true},
		{&pgconn.PgError{Code: "42501"}, false},
		{&pgconn.PgError{}, false}, // of a pooler
		{errors.New("closed pool"), false},
	} {
		if got := isAway(c.err); got != c.away {
			t.Errorf("%v: away is %v", c.err, got)
		}
	}
}
