package tasks_test

import (
	"context"
	"errors"
	"testing"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/tasks"
)

// A call keeps its key over its retries, and no other has it: not the one that has its id after a TRUNCATE, nor that of
// another database.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	keys := map[string]string{} // to what it was of
	of := func(b *bench, seen <-chan string, what string) {
		t.Helper()
		id := b.insert("key")
		if id != 1 {
			t.Fatalf("%s: its id is %d", what, id)
		}
		b.ended(id, callqueue.StatusDone)
		first, second := <-seen, <-seen
		if first == "" || first != second {
			t.Errorf("%s: its attempts have the keys %q and %q", what, first, second)
		}
		if other := keys[first]; other != "" {
			t.Errorf("%s has the key of %s: %q", what, other, first)
		}
		keys[first] = what
	}
	for _, name := range []string{"one database", "another"} {
		seen := make(chan string, 10)
		b := newBench(t, map[string]tasks.Handler{"key": func(_ context.Context, call *tasks.Call) error {
			seen <- call.IdempotencyKey
			if call.Attempt == 1 {
				return errors.New("try again")
			}
			return nil
		}})
		of(b, seen, name)
		if _, err := b.pool.Exec(t.Context(), `TRUNCATE call_queue RESTART IDENTITY; DELETE FROM call_attempts`); err != nil {
			t.Fatal(err)
		}
		of(b, seen, name+", emptied")
	}
}
