package callqueue_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
)

// asks has a client of its own, and a channel that has a token for each time it asks which calls have not ended.
func asks(t *testing.T, base *pgxpool.Pool) (*callqueue.Client, *pgxpool.Pool, <-chan struct{}) {
	t.Helper()
	asked := make(chan struct{}, 10_000)
	client, pool := another(t, base, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = onStatement(func(sql string) {
			if strings.Contains(sql, "status NOT IN") {
				asked <- struct{}{}
			}
		})
	})
	return client, pool, asked
}

func insertCalls(t *testing.T, client *callqueue.Client, n int) []int64 {
	t.Helper()
	ids, err := client.InsertMany(t.Context(), make([]callqueue.Call, n))
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func end(t *testing.T, pool *pgxpool.Pool, status callqueue.Status, ids ...int64) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `UPDATE call_queue SET status = $1 WHERE id = ANY($2)`, status, ids); err != nil {
		t.Fatal(err)
	}
}

// However a call ends, whoever waits hears of it, in the order asked for, and twice of one that is asked for twice.
func TestWaitMany(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	client, pool, asked := asks(t, base)
	ids := insertCalls(t, client, 4)
	end(t, pool, callqueue.StatusDone, ids[0])
	go func() {
		<-asked
		<-asked
		end(t, pool, callqueue.StatusFailed, ids[1])
		end(t, pool, callqueue.StatusCancelled, ids[2])
		if _, err := pool.Exec(t.Context(), `DELETE FROM call_queue WHERE id = $1`, ids[3]); err != nil {
			t.Error(err)
		}
	}()
	calls, err := client.WaitMany(t.Context(), ids[2], ids[0], ids[3], ids[1], ids[0], 99)
	var missing *callqueue.NotFoundError
	if !errors.As(err, &missing) || len(missing.IDs) != 2 || missing.IDs[0] != ids[3] || missing.IDs[1] != 99 {
		t.Errorf("missing: %v, want %d and 99", err, ids[3])
	}
	var got []int64
	for _, c := range calls {
		if !c.Status.Final() {
			t.Errorf("call %d is %s", c.ID, c.Status)
		}
		got = append(got, c.ID)
	}
	if want := []int64{ids[2], ids[0], ids[1], ids[0]}; len(got) != 4 || [4]int64(got) != [4]int64(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := client.Wait(t.Context(), 99); err != callqueue.ErrNotFound { //nolint:errorlint // it is documented so
		t.Errorf("a call that there is not: %v", err)
	}
	if none, err := client.WaitMany(t.Context()); len(none) != 0 || err != nil {
		t.Errorf("for none: %v, %v", none, err)
	}
}

// Many who wait share the questions, and do not end one another's waits.
func TestWaitTogether(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	client, pool, asked := asks(t, base)
	ids := insertCalls(t, client, 300)
	var waits sync.WaitGroup
	var ended atomic.Int32
	leaving, leave := context.WithCancel(t.Context())
	for i, id := range ids {
		waits.Go(func() {
			ctx := t.Context()
			if i%3 == 0 {
				ctx = leaving
			}
			call, err := client.Wait(ctx, id)
			switch {
			case i%3 == 0 && !errors.Is(err, context.Canceled), i%3 > 0 && (err != nil || call.ID != id || call.Status != callqueue.StatusDone):
				t.Errorf("call %d: %+v, %v", id, call, err)
			}
			ended.Add(1)
		})
	}
	<-asked
	leave()
	<-asked
	if n := ended.Load(); n > 100 {
		t.Errorf("%d waits have ended, of 100 that were given up", n)
	}
	began := time.Now()
	end(t, pool, callqueue.StatusDone, ids...)
	waits.Wait()
	if most := 10 + int(time.Since(began)/(15*time.Millisecond)); len(asked) > most {
		t.Errorf("%d questions, want at most %d for all of them", len(asked), most)
	}
}

// What has ended is read again if the connection is lost just then.
func TestWaitReadsAgain(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	var reads atomic.Int32
	client, pool := another(t, base, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = onStatement(func(sql string) {
			if strings.Contains(sql, "WITH years") && reads.Add(1) == 1 {
				if _, err := base.Exec(t.Context(), `
					SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
					WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
					t.Error(err)
				}
			}
		})
	})
	id := insertCalls(t, client, 1)[0]
	end(t, pool, callqueue.StatusDone, id)
	if call, err := client.Wait(t.Context(), id); err != nil || call.Status != callqueue.StatusDone || reads.Load() < 2 {
		t.Errorf("got %+v, %v, after %d reads", call, err, reads.Load())
	}
}

// A connection that is lost is no answer; a refusal is.
func TestWaitWithoutAnswer(t *testing.T) {
	t.Parallel()
	_, base := newClient(t)
	client, pool, asked := asks(t, base)
	id := insertCalls(t, client, 1)[0]
	go func() {
		for range 3 {
			<-asked
			if _, err := base.Exec(t.Context(), `
				SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%status NOT IN%'`); err != nil {
				t.Error(err)
			}
		}
		end(t, base, callqueue.StatusDone, id)
	}()
	if call, err := client.Wait(t.Context(), id); err != nil || call.Status != callqueue.StatusDone {
		t.Errorf("got %+v, %v", call, err)
	}
	id = insertCalls(t, client, 1)[0]
	if _, err := pool.Exec(t.Context(), `ALTER TABLE call_queue RENAME TO elsewhere`); err != nil {
		t.Fatal(err)
	}
	client, _, _ = asks(t, base) // which has prepared nothing
	_, err := client.Wait(t.Context(), id)
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "42P01" {
		t.Errorf("without the table: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	pool.Close()
	client, err = callqueue.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Wait(ctx, id); err == nil || ctx.Err() != nil {
		t.Errorf("with a closed pool: %v", err)
	}
}
