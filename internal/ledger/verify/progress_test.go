package verify_test

import (
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/pgtest"
)

// Verify tells its steps, and each thousand attempts of about how many; of a part of the ledger nobody knows how many.
func TestProgress(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
			SELECT i, 1, 1, now(), now(), 'not_sent', 'default', 'http', '', '[]' FROM generate_series(1, 2500) i`,
		`ANALYZE call_attempts`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		since time.Time
		of    int64
	}{{time.Time{}, 2500}, {time.Now().Add(-time.Hour), 0}} {
		var steps []string
		var read []int64
		if _, err := verify.Run(t.Context(), pool, verify.Options{Since: c.since, Progress: func(step string, done, of int64) {
			if done == 0 {
				steps = append(steps, step)
				return
			}
			if step != "attempts" || of != c.of {
				t.Errorf("%s: %d of %d, want attempts of %d", step, done, of, c.of)
			}
			read = append(read, done)
		}}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"count", "limits", "attempts", "shares", "usage", "limits", "calls", "summary"}; !slices.Equal(steps, want) {
			t.Errorf("steps %v, want %v", steps, want)
		}
		if want := []int64{1000, 2000}; !slices.Equal(read, want) {
			t.Errorf("read %v, want %v", read, want)
		}
	}
}
