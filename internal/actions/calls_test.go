package actions_test

import (
	"slices"
	"testing"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/actions"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
)

// What a filter has passed over without a change is behind it too: its progress reaches the end.
func TestProgressOfAFilter(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 1200)`); err != nil {
		t.Fatal(err)
	}
	client, err := callqueue.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	verb, _ := actions.Verb("run") // they are due already
	var seen []int64
	c := actions.Changes{Verb: verb, Pool: schema.Names{}.In(pool), Client: client, Progress: func(n, of int64) {
		if seen = append(seen, n); of != 1200 {
			t.Errorf("%d of %d", n, of)
		}
	}}
	f := admin.Filter{Queue: "q"}
	matched, err := c.Bound(t.Context(), &f)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := c.ByFilter(t.Context(), f, matched, ledger.By("ann")); err != nil || changed > 0 {
		t.Errorf("changed %d, %v", changed, err)
	}
	if want := []int64{500, 1000, 1200}; !slices.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
}
