package callqueue_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestEnqueueCallConcurrentDuplicates(t *testing.T) {
	t.Parallel()
	_, owner := newClient(t)
	pool := enqueuer(t, owner)
	for round := range 10 {
		answers, errs := make([]enqueued, 20), make([]error, 20)
		together(20, func(i int) {
			answers[i], errs[i] = enqueueCall(t, pool, `unique_key => $1`, fmt.Sprint(round))
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		won := 0
		for _, a := range answers {
			if !a.Duplicate {
				won++
			}
			if a.ID != answers[0].ID {
				t.Errorf("ids %d and %d", a.ID, answers[0].ID)
			}
		}
		if won != 1 || count(t, owner) != round+1 {
			t.Fatalf("%d won, and %d calls after round %d", won, count(t, owner), round)
		}
	}
}

// The call that is in the way ends, again and again, at any moment: each answer is an id, an id is
// inserted once, and a duplicate's is one that was.
func TestEnqueueCallWhileCallsEnd(t *testing.T) {
	t.Parallel()
	_, owner := newClient(t)
	pool := enqueuer(t, owner)
	const each = 200
	answers, errs := make([][]enqueued, 8), make([]error, 8)
	var ending sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		ending.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = owner.Exec(t.Context(), endSQL, "u")
				}
			}
		})
	}
	together(len(answers), func(i int) {
		for range each {
			answer, err := enqueueCall(t, pool, `unique_key => 'u'`)
			errs[i] = errors.Join(errs[i], err)
			answers[i] = append(answers[i], answer)
		}
	})
	close(stop)
	ending.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	inserted, duplicates := map[int64]int{}, map[int64]bool{}
	for _, list := range answers {
		for _, a := range list {
			if a.Duplicate {
				duplicates[a.ID] = true
			} else {
				inserted[a.ID]++
			}
		}
	}
	for id, times := range inserted {
		if times != 1 {
			t.Errorf("call %d was inserted %d times", id, times)
		}
	}
	for id := range duplicates {
		if inserted[id] == 0 {
			t.Errorf("call %d is a duplicate's, and nobody inserted it", id)
		}
	}
	if n := count(t, owner); n != len(inserted) || len(inserted) < 2 || len(duplicates) < 2 {
		t.Errorf("%d calls; %d were inserted, and %d of them had duplicates", n, len(inserted), len(duplicates))
	}
}

// A duplicate of what is not committed waits for it: it goes on where that rolls back, has its id where
// it commits; under REPEATABLE READ it is told to try again rather than left to go round.
func TestEnqueueCallWaits(t *testing.T) {
	t.Parallel()
	_, owner := newClient(t)
	pool := enqueuer(t, owner)
	for _, c := range []struct {
		name   string
		commit bool
		level  pgx.TxIsoLevel
		code   string
	}{
		{"rolled back", false, pgx.ReadCommitted, ""},
		{"committed", true, pgx.ReadCommitted, ""},
		{"rolled back, repeatable read", false, pgx.RepeatableRead, ""},
		{"committed, repeatable read", true, pgx.RepeatableRead, "40001"},
	} {
		const sql = `SELECT id, duplicate FROM enqueue_call(unique_key => $1)`
		tx := begin(t, pool)
		var held, got enqueued
		if err := tx.QueryRow(t.Context(), sql, c.name).Scan(&held.ID, &held.Duplicate); err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() {
			second <- pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: c.level}, func(tx pgx.Tx) error {
				return tx.QueryRow(t.Context(), sql, c.name).Scan(&got.ID, &got.Duplicate)
			})
		}()
		awaitLock(t, owner, 1)
		end := tx.Rollback
		if c.commit {
			end = tx.Commit
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := <-second
		if c.code != "" {
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != c.code {
				t.Errorf("%s: got %v, want %s", c.name, err, c.code)
			}
			continue
		}
		if err != nil || got.Duplicate != c.commit || (got.ID == held.ID) != c.commit {
			t.Errorf("%s: %+v held, then %+v, %v", c.name, held, got, err)
		}
	}
}

// together runs n at once, from one gate.
func together(n int, run func(i int)) {
	var done sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		done.Go(func() {
			<-gate
			run(i)
		})
	}
	close(gate)
	done.Wait()
}

// awaitLock waits until so many sessions of the database wait for a lock.
func awaitLock(t *testing.T, pool *pgxpool.Pool, want int) {
	t.Helper()
	waiting := 0
	for end := time.Now().Add(time.Minute); waiting < want && time.Now().Before(end); {
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity, pg_sleep(0.005)
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if waiting != want {
		t.Fatalf("%d sessions wait for a lock, want %d", waiting, want)
	}
}
