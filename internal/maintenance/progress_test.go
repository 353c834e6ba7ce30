package maintenance

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/callq/callq/internal/pgtest"
)

type told struct {
	Step     string
	Done, Of int64
}

// Retention tells up to which id it is, vacuum with which table it begins.
func TestProgress(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO call_queue (id, status, finished_at)
		OVERRIDING SYSTEM VALUE SELECT 100 + i, 'done', now() - interval '1 year' FROM generate_series(1, 2500) i`); err != nil {
		t.Fatal(err)
	}
	var list []told
	tell := func(step string, done, of int64) { list = append(list, told{step, done, of}) }
	if p, err := PurgeAndTell(t.Context(), pool, Retention{}, tell); err != nil || p.Calls != 2500 {
		t.Fatal(p, err)
	}
	want := []told{
		{"calls", 0, 0}, {"calls", 1000, 2500}, {"calls", 2000, 2500}, {"calls", 2500, 2500}, {"attempts", 0, 0}, {"history", 0, 0}, {"answers", 0, 0},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("retention (-want +got):\n%s", diff)
	}

	list = nil
	if err := VacuumAndTell(t.Context(), pool, tell); err != nil {
		t.Fatal(err)
	}
	if first := (told{"call_queue", 0, 7}); len(list) != 7 || list[0] != first || list[6].Done != 6 {
		t.Errorf("vacuum tells %v", list)
	}
}
