package callqueue

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/pgtest"
)

// retryOne retries a call that has this status.
func retryOne(t *testing.T, pool *pgxpool.Pool, client *Client, status string) error {
	t.Helper()
	var id int64
	err := pool.QueryRow(t.Context(), `INSERT INTO call_queue (status, run_at) VALUES ($1, 'infinity') RETURNING id`, status).Scan(&id)
	if err == nil {
		_, err = client.Retry(t.Context(), id)
	}
	return err
}

func TestInsertWakes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	client, err := New(pool)
	listener, connectErr := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err = errors.Join(err, connectErr); err != nil {
		t.Fatal(err)
	}
	defer listener.Close(context.Background())
	if _, err := listener.Exec(t.Context(), "LISTEN "+WakeChannel); err != nil {
		t.Fatal(err)
	}
	// woke is how many wakes were committed so far, and not counted yet.
	woke := func() (n int) {
		t.Helper()
		const last = "the last one"
		_, err := pool.Exec(t.Context(), `SELECT pg_notify($1, $2)`, WakeChannel, last)
		for ; ; n++ {
			heard, heardErr := listener.WaitForNotification(t.Context())
			if err = errors.Join(err, heardErr); err != nil {
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
	exec := func(sql string) func() error {
		return func() error { _, err := pool.Exec(t.Context(), sql); return err }
	}
	later := Call{RunAt: time.Now().Add(time.Hour)} // what is not due, below
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
		{"Retry, after a plain INSERT", 2, func() error { return retryOne(t, pool, client, "failed") }},
		{"plain SQL", 1, exec(`INSERT INTO call_queue DEFAULT VALUES`)},
		{"an UPDATE", 1, exec(`UPDATE call_queue SET priority = 1 WHERE run_at <= now()`)},
		{"an UPDATE of what is not due", 0, exec(`UPDATE call_queue SET priority = 2 WHERE run_at > now()`)},
	} {
		began := time.Now()
		_, err := pool.Exec(t.Context(), `SELECT setval('callq.call_wake_seq', 1)`) // the last wake was long ago
		if err = errors.Join(err, c.insert()); err != nil {
			t.Fatal(err)
		}
		if got := woke(); got != c.want && (time.Since(began) < 80*time.Millisecond || got != c.want+1) { // a later statement may wake too
			t.Errorf("%s: woke %d times, want %d", c.name, got, c.want)
		}
	}
	start := time.Now()
	for range 300 {
		_, insertErr := client.Insert(t.Context(), Call{})
		err = errors.Join(err, insertErr)
	}
	if n, most := woke(), int(time.Since(start)/(80*time.Millisecond))+2; err != nil || n < 1 || n > most {
		t.Errorf("300 inserts woke %d times, %v, want 1 to %d", n, err, most)
	}
}
