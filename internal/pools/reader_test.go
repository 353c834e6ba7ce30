package pools

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A pool has its workers and its open attempts. One of which no worker is known has the latter alone.
func TestMerge(t *testing.T) {
	t.Parallel()
	workers := []Pool{{Name: "a", Workers: 2, AllSlots: 9}, {Name: "b", Workers: 1, AllSlots: 5}}
	open := []openAttempts{{"b", 1, 2, 3, 20}, {"gone", 0, 1, 0, 10}}
	list, from := merge(workers, open)
	want := []*Pool{
		{Name: "a", Workers: 2, AllSlots: 9},
		{Name: "b", Workers: 1, AllSlots: 5, Started: 1, Unstarted: 2, InRuns: 3},
		{Name: "gone", Unstarted: 1},
	}
	if diff := cmp.Diff(want, list); diff != "" || from == nil || *from != 10 {
		t.Errorf("the smallest open batch is %v, want 10; the pools:\n%s", from, diff)
	}
	list[0].Started = 7
	if again, from := merge(workers, nil); again[0].Started != 0 || from != nil {
		t.Errorf("without open attempts there are %d started of a batch from %v on: what was known of workers has changed", again[0].Started, from)
	}
}

// Which workers there are is read once a second, and at once after Forget. While none is known to be alive, it is read each time.
func TestWorkersAreReadOnceASecond(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	var r Reader
	now := time.Now()
	workers := func(after time.Duration) (n int) {
		t.Helper()
		now = now.Add(after)
		for _, p := range ask(t, pool, &r, now).List {
			n += p.Workers
		}
		return n
	}
	join := func(id string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), joinSQL, id); err != nil {
			t.Fatal(err)
		}
	}
	if n := workers(0); n != 0 {
		t.Fatalf("there are %d workers before the first came", n)
	}
	join("1")
	if n := workers(0); n != 1 {
		t.Errorf("there are %d workers after the first came, want 1: while there was none, nothing was known", n)
	}
	join("2")
	if n := workers(workersFor - 1); n != 1 {
		t.Errorf("there are %d workers, want 1: they are read anew within %s", n, workersFor)
	}
	if n := workers(1); n != 2 {
		t.Errorf("there are %d workers after %s, want 2", n, workersFor)
	}
	join("3")
	r.Forget()
	if n := workers(0); n != 3 {
		t.Errorf("there are %d workers after a third came and what was known was forgotten, want 3", n)
	}
}

// The plans of what claims read of pools. call_workers is small, and may be read as a whole.
//
//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), pgtest.FillSQL, []string{"call_workers"}, map[string]pgtest.Planned{
		"workers": {SQL: workersSQL},
		"open":    {SQL: openSQL},
	})
}

const joinSQL = `
INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ($1, 'p', '{http}', '{}', 10, now(), now())`

func ask(t *testing.T, pool *pgxpool.Pool, r *Reader, now time.Time) *Pools {
	t.Helper()
	var found *Pools
	var asks pgx.Batch
	r.Ask(&asks, 0, now, &found)
	if err := pool.SendBatch(t.Context(), &asks).Close(); err != nil {
		t.Fatal(err)
	}
	return found
}
