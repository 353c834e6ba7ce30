package callqueue

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/pgtest"
)

func TestWaker(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		inserts []time.Duration
		said    []time.Duration // by an insert
		sent    []time.Duration // by the timer
	}{
		{"a lone insert says it", fifths(0), fifths(0), nil},
		{"the second of two is heard at the end", fifths(0, 1), fifths(0), fifths(6)},
		{"far apart, each says it", fifths(0, 5, 20), fifths(0, 5, 20), nil},
		{"a burst is one and a last", fifths(0, 1, 2, 3, 4), fifths(0), fifths(9)},
		{"a stream is one per wakeEvery and a last", fifths(0, 2, 4, 6, 8, 10, 12), fifths(0, 6, 12), fifths(17)},
		{"what the timer sent counts", fifths(0, 1, 7, 11), fifths(0, 11), fifths(6, 16)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var said, sent []time.Duration
				w := waker{send: func() { sent = append(sent, time.Since(start)) }}
				for _, at := range c.inserts {
					time.Sleep(time.Until(start.Add(at))) // the bubble's clock
					synctest.Wait()
					if w.now() {
						said = append(said, at)
					}
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if !slices.Equal(said, c.said) || !slices.Equal(sent, c.sent) {
					t.Errorf("said %v, sent %v; want %v, %v", said, sent, c.said, c.sent)
				}
				all := slices.Sorted(slices.Values(append(said, sent...)))
				for i := 1; i < len(all); i++ {
					if all[i]-all[i-1] < wakeEvery {
						t.Errorf("wakes at %v and %v", all[i-1], all[i])
					}
				}
			})
		})
	}
}

// fifths are times in fifths of wakeEvery.
func fifths(times ...int) []time.Duration {
	var all []time.Duration
	for _, t := range times {
		all = append(all, time.Duration(t)*wakeEvery/5)
	}
	return all
}

// retryOne retries a call that has this status.
func retryOne(t *testing.T, pool *pgxpool.Pool, client *Client, status string) error {
	t.Helper()
	var id int64
	err := pool.QueryRow(t.Context(), `INSERT INTO call_queue (status, run_at) VALUES ($1, 'infinity') RETURNING id`, status).Scan(&id)
	if err != nil {
		return err
	}
	_, err = client.Retry(t.Context(), id)
	return err
}

func TestInsertWakes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	client, err := New(pool)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close(context.Background())
	if _, err := listener.Exec(t.Context(), "LISTEN "+WakeChannel); err != nil {
		t.Fatal(err)
	}
	// quiet waits until the last wake is so long ago that the next insert says its own, and no timer does.
	quiet := func() {
		w := &client.waker
		for said, armed := time.Now(), true; armed || time.Since(said) < wakeEvery; {
			w.mu.Lock()
			said, armed = w.said, w.later != nil
			w.mu.Unlock()
		}
	}
	// woke is how many wakes were committed so far, and not counted yet.
	woke := func() (n int) {
		t.Helper()
		const last = "the last one"
		if _, err := pool.Exec(t.Context(), `SELECT pg_notify($1, $2)`, WakeChannel, last); err != nil {
			t.Fatal(err)
		}
		for ; ; n++ {
			heard, err := listener.WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if heard.Payload == last {
				return n
			}
		}
	}
	inTx := func(insert func(pgx.Tx) error) func() error {
		return func() error { return pgx.BeginFunc(t.Context(), pool, insert) }
	}
	later := Call{RunAt: time.Now().Add(time.Hour)}
	for _, c := range []struct {
		name   string
		want   int
		insert func() error
	}{
		{"Insert", 1, func() error { _, err := client.Insert(t.Context(), Call{}); return err }},
		{"Insert, unique", 1, func() error { _, err := client.Insert(t.Context(), Call{UniqueKey: "u"}); return err }},
		{"InsertMany", 1, func() error { _, err := client.InsertMany(t.Context(), []Call{later, {}}); return err }},
		{"InsertTx", 1, inTx(func(tx pgx.Tx) error { _, err := client.InsertTx(t.Context(), tx, Call{}); return err })},
		{"InsertManyTx", 1, inTx(func(tx pgx.Tx) error { _, err := client.InsertManyTx(t.Context(), tx, []Call{{}}); return err })},
		{"Retry", 1, func() error { return retryOne(t, pool, client, "failed") }},
		{"Retry of what waits", 0, func() error { return retryOne(t, pool, client, "error") }},
		{"Insert for later", 0, func() error { _, err := client.Insert(t.Context(), later); return err }},
		{"InsertMany for later", 0, func() error { _, err := client.InsertMany(t.Context(), []Call{later}); return err }},
	} {
		quiet()
		if err := c.insert(); err != nil {
			t.Fatal(err)
		}
		if got := woke(); got != c.want {
			t.Errorf("%s: woke %d times, want %d", c.name, got, c.want)
		}
	}

	quiet()
	start := time.Now()
	for range 300 {
		if _, err := client.Insert(t.Context(), Call{}); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(start)
	n := woke() // but for one that may yet come
	if most := int(took/wakeEvery) + 2; n < 1 || n > most {
		t.Errorf("300 inserts in %v woke %d times, want 1 to %d", took, n, most)
	}
}
