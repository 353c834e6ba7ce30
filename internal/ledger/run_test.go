package ledger_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
)

// Of two deliveries of a run one gets all of it, and only its token starts what it has.
//
//callq:guarantee 1
func TestReserve(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, ledger.Settings())
	ids := make([]int64, 50)
	for i := range ids {
		ids[i] = ledgertest.Open(t, pool)
	}
	ledgertest.Exec(t, pool, `UPDATE callq.call_open SET rooms = '{1}', gaps = '{10 ms}'`)

	var wins atomic.Int64
	var winner atomic.Int64
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for token := range int64(4) {
		wg.Go(func() {
			<-gate
			members, err := ledger.Reserve(context.Background(), pool, "w", token+1, ids)
			for ledger.Busy(err) {
				members, err = ledger.Reserve(context.Background(), pool, "w", token+1, ids)
			}
			if err != nil || len(members) != 0 && len(members) != len(ids) {
				t.Errorf("token %d: %d of %d attempts, %v", token+1, len(members), len(ids), err)
			}
			if len(members) > 0 {
				wins.Add(1)
				winner.Store(token + 1)
				if m := members[0]; *m.Rooms[0] != 1 || *m.Gaps[0] != 10*time.Millisecond {
					t.Errorf("a member with room for %d in %s", *m.Rooms[0], *m.Gaps[0])
				}
			}
		})
	}
	close(gate)
	wg.Wait()
	if wins.Load() != 1 {
		t.Fatalf("%d deliveries have the run", wins.Load())
	}
	mine, others := winner.Load(), winner.Load()+1
	if members, err := ledger.Reserve(t.Context(), pool, "w", mine, ids[:1]); err != nil || len(members) != len(ids) {
		t.Errorf("asked again for a part: %d of %d attempts, %v", len(members), len(ids), err)
	}
	if a := ledgertest.Start(t, pool, ledgertest.Request(ids[0], others))[others]; !errors.Is(a.Refused, ledger.ErrNotOpen) {
		t.Errorf("another's start: %v", a.Refused)
	}
	if a := ledgertest.Start(t, pool, ledgertest.Request(ids[0], mine))[mine]; a.Refused != nil {
		t.Errorf("its own start: %v", a.Refused)
	}

	// Whoever takes back what has not started leaves alone what has.
	closed, err := new(ledger.Closer).Close(t.Context(), pool, []ledger.Closing{
		{CallID: ids[0], Attempt: 1, Unstarted: true, Outcome: callqueue.OutcomeNotSent, Status: callqueue.StatusNew},
		{CallID: ids[1], Attempt: 1, Unstarted: true, Outcome: callqueue.OutcomeNotSent, Status: callqueue.StatusNew},
	})
	if err != nil || len(closed) != 1 || closed[0] != ids[1] {
		t.Errorf("closed %v, %v", closed, err)
	}
}

// An attempt of a run starts only once its run is reserved, and no later than any other.
func TestRunStarts(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, ledger.Settings())
	id := ledgertest.Open(t, pool)
	ledgertest.Exec(t, pool, `UPDATE callq.call_open SET rooms = '{1}', gaps = '{10 ms}'`)
	if a := ledgertest.Start(t, pool, ledgertest.Request(id, 7))[7]; !errors.Is(a.Refused, ledger.ErrNotOpen) {
		t.Errorf("not reserved: %v", a.Refused)
	}
	if _, err := ledger.Reserve(t.Context(), pool, "w", 7, []int64{id}); err != nil {
		t.Fatal(err)
	}
	ledgertest.Exec(t, pool, `UPDATE callq.call_open SET start_by = clock_timestamp()`)
	if a := ledgertest.Start(t, pool, ledgertest.Request(id, 7))[7]; !errors.Is(a.Refused, ledger.ErrNotOpen) {
		t.Errorf("too late: %v", a.Refused)
	}
}
