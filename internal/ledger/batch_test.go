package ledger_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5/pgconn"
)

// While some are served the next ones gather; but where that takes long, as behind a lock, the other lane goes on.
func TestLanesTakeTurns(t *testing.T) {
	cases := []struct {
		name   string
		first  int // requests that come at once, then second of them a moment later
		second int
		takes  time.Duration // a statement
		done   time.Duration // when all are answered
	}{
		{"a few at a time", 1, 1, 10 * time.Millisecond, 20 * time.Millisecond},
		{"a few behind a crowd", 100, 1, 10 * time.Millisecond, 20 * time.Millisecond},
		{"a crowd behind a crowd", 100, 100, 10 * time.Millisecond, 20 * time.Millisecond},
		{"behind one that is stuck", 100, 100, time.Second, 1100 * time.Millisecond},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				b := ledger.NewBatch(1000, nil, nil, func(_ context.Context, asks []int) ([]int, error) {
					time.Sleep(c.takes)
					return asks, nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				var asked, lanes sync.WaitGroup
				ask := func(n int) {
					for i := range n {
						asked.Add(1)
						b.Tell(ctx, i, func(int, error) { asked.Done() })
					}
				}
				ask(c.first) // there before the lanes are: one statement
				lanes.Go(func() { b.Run(ctx, 2) })
				time.Sleep(time.Millisecond)
				ask(c.second)
				asked.Wait()
				if took := time.Since(begun); took != c.done {
					t.Errorf("all were answered after %s, want %s", took, c.done)
				}
				cancel()
				lanes.Wait()
			})
		})
	}
}

// Few requests linger for others, but for no longer than each of them may; a crowd does not.
func TestRequestsLinger(t *testing.T) {
	for name, c := range map[string]struct {
		at     []int // the requests, in ms
		urgent int   // the one that may not linger
		want   []int // the statements
	}{
		"after a rest it goes at once":         {[]int{0, 30}, -1, []int{0, 30}},
		"the next ones share a statement":      {[]int{0, 1, 5, 19}, -1, []int{0, 20}},
		"one that may not takes all along":     {[]int{0, 1, 5, 30}, 2, []int{0, 5, 30}},
		"a crowd goes once it is one":          {append([]int{0}, slices.Repeat([]int{3}, 32)...), -1, []int{0, 3}},
		"a stream makes a statement each 20ms": {[]int{0, 8, 16, 24, 32, 41}, -1, []int{0, 20, 40, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now().Add(time.Hour)
				var statements []int
				linger := func(ask int, last time.Time) time.Time {
					if ask == c.urgent {
						return time.Time{}
					}
					return last.Add(20 * time.Millisecond)
				}
				b := ledger.NewBatch(1000, nil, linger, func(_ context.Context, asks []int) ([]int, error) {
					statements = append(statements, int(time.Since(begun).Milliseconds()))
					return asks, nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				var asked, lanes sync.WaitGroup
				lanes.Go(func() { b.Run(ctx, 1) })
				for i, at := range c.at {
					time.Sleep(time.Until(begun.Add(time.Duration(at) * time.Millisecond))) // the bubble's clock
					asked.Add(1)
					b.Tell(ctx, i, func(int, error) { asked.Done() })
				}
				asked.Wait()
				if !slices.Equal(statements, c.want) {
					t.Errorf("statements began at %v ms, want %v", statements, c.want)
				}
				cancel()
				lanes.Wait()
			})
		})
	}
}

// What nobody will serve any more is answered.
func TestBatchEnds(t *testing.T) {
	t.Parallel()
	b := ledger.NewBatch(10, nil, nil, func(context.Context, []int) ([]int, error) { panic("served") })
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	b.Tell(ctx, 1, func(_ int, err error) { answered <- err })
	cancel()
	b.Run(ctx, 0)
	if err := <-answered; err == nil {
		t.Error("a request that nobody served was answered without an error")
	}
}

// A statement takes in no more than its timeout allows: little of what is heavy, and less of what takes long.
func TestBatchesThatTakeLong(t *testing.T) {
	for name, c := range map[string]struct {
		bytes   int           // of each request
		each    time.Duration // that a statement takes for it
		largest int           // statement, once it is known what it takes
	}{
		"light":     {1 << 10, time.Millisecond, 1000},
		"heavy":     {1 << 20, time.Millisecond, 4},
		"very slow": {1, 4 * time.Second, 1},
		"slow":      {1, 100 * time.Millisecond, 15},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sizes := []int{}
				b := ledger.NewBatch(1000, func(int) int { return c.bytes }, nil, func(ctx context.Context, asks []int) ([]int, error) {
					sizes = append(sizes, len(asks))
					select {
					case <-time.After(time.Duration(len(asks)) * c.each):
						return asks, nil
					case <-time.After(5 * time.Second):
						return nil, context.DeadlineExceeded
					}
				})
				ctx, cancel := context.WithCancel(t.Context())
				var asked, lanes sync.WaitGroup
				for i := range 1000 {
					asked.Go(func() {
						for {
							if _, err := b.Do(ctx, i); err == nil {
								return
							}
							time.Sleep(time.Second)
						}
					})
				}
				synctest.Wait()
				lanes.Go(func() { b.Run(ctx, 1) })
				asked.Wait()
				if largest := slices.Max(sizes[min(len(sizes)-1, 10):]); largest > c.largest {
					t.Errorf("%d in one statement, want at most %d", largest, c.largest)
				}
				cancel()
				lanes.Wait()
			})
		})
	}
}

// A request whose value Postgres does not take, that is too large for it, or whose row is corrupt fails alone. It is found in
// few statements, however many requests are in the batch.
//
//callq:guarantee 12
func TestBadDataFailsAlone(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"22P05", "54000", "XX001"} {
		statements := 0
		b := ledger.NewBatch(1024, nil, nil, func(_ context.Context, asks []int) ([]int, error) {
			statements++
			if slices.Contains(asks, 700) {
				return nil, &pgconn.PgError{Code: code}
			}
			return asks, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		var asked, lanes sync.WaitGroup
		for ask := range 1024 { // before the lane is there: one statement
			asked.Add(1)
			b.Tell(ctx, ask, func(answer int, err error) {
				defer asked.Done()
				if bad := ask == 700; ledger.Spoiled(err) != bad || !bad && answer != ask {
					t.Errorf("%s: %d is answered with %d, %v", code, ask, answer, err)
				}
			})
		}
		lanes.Go(func() { b.Run(ctx, 1) })
		asked.Wait()
		cancel()
		lanes.Wait()
		if statements > 21 {
			t.Errorf("%s: %d statements, want 21 at most", code, statements)
		}
	}
}
