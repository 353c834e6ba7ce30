//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
)

// What is struck here is no process: rows of the tables, Postgres's clock, the network to the API.

// holdOthers waits until the others are up, and keeps them so until release.
func (v *victim) holdOthers() (release func()) {
	for _, other := range v.others {
		other.mu.Lock()
	}
	return func() {
		for _, other := range v.others {
			other.mu.Unlock()
		}
	}
}

// lockRows holds rows of calls that wait and run, as somebody's open transaction does.
func (v *victim) lockRows() (func() error, error) {
	defer v.holdOthers()()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, v.s.postgres.URL("postgres"))
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, `BEGIN; `+
		`SELECT FROM callq.call_open ORDER BY random() LIMIT 3 FOR UPDATE SKIP LOCKED; `+
		`SELECT FROM call_queue WHERE status IN ('new', 'error', 'dispatched') ORDER BY random() LIMIT 10 FOR UPDATE SKIP LOCKED`)
	return func() error {
		_ = conn.Close(ctx) // a restart of Postgres may have
		return nil
	}, err
}

// poisoned is the key of calls that cannot be made.
const poisoned = "poison"

// insertPoison inserts into each queue calls that must fail by themselves and hold no other up.
func (v *victim) insertPoison() (func() error, error) {
	defer v.holdOthers()()
	var queues []string
	for _, q := range killQueues() {
		queues = append(queues, q.name)
	}
	_, err := v.s.pool.Exec(context.Background(), `
INSERT INTO call_queue (queue, key, call_data, expires_at)
SELECT queue, $1, data::jsonb, CASE data WHEN '{"late": 1}' THEN now() - interval '1 s' END
FROM unnest($2::text[]) AS queue, unnest(ARRAY[
    (SELECT jsonb_agg(jsonb '1e131071')::text FROM generate_series(1, 20)),
    '{"late": 1}', '"no object"', '{"url": "ftp://nowhere"}',
    format('{"url": %s, "headers": {"Authorization": {"secret": "NONE"}}}', to_json($3::text))]) AS data
UNION ALL SELECT $2[1], $1, jsonb_agg(jsonb '1e131071'), NULL FROM generate_series(1, 9000) -- no text can be made of it
UNION ALL SELECT $2[2], $1, jsonb_agg(md5(i::text)), NULL FROM generate_series(1, 250000) AS i`,
		poisoned, queues, v.s.api.URL()+"poison")
	if err != nil {
		return nil, fmt.Errorf("insert poison: %w", err)
	}
	return func() error { return nil }, nil
}

// stepForward sets Postgres's clock forward. A step that no dispatcher sees is outside of what is promised: so one has
// looked before, and none ends until it is written down.
func stepForward(by time.Duration) func(*victim) (func() error, error) {
	return func(v *victim) (func() error, error) {
		defer v.holdOthers()()
		var claims, noted int
		err := v.s.pool.QueryRow(context.Background(),
			`SELECT last_value, (SELECT coalesce(max(id), 0) FROM callq.call_clock_gains) FROM callq.call_batch_seq`).Scan(&claims, &noted)
		if err != nil {
			return nil, err
		}
		v.s.await(time.Minute, `SELECT last_value > $1 FROM callq.call_batch_seq`, claims+ofEach)
		undo, err := step(by)(v)
		if err == nil {
			v.s.await(time.Minute, `SELECT coalesce(max(id), 0) > $1 FROM callq.call_clock_gains`, noted)
		}
		return undo, err
	}
}

// step sets Postgres's clock.
func step(by time.Duration) func(*victim) (func() error, error) {
	return func(v *victim) (func() error, error) {
		v.s.clockOff += by
		aside := v.s.clock + ".new"
		if err := os.WriteFile(aside, fmt.Appendf(nil, "%+.3f\n", v.s.clockOff.Seconds()), 0o644); err != nil {
			return nil, err
		}
		return func() error { return nil }, os.Rename(aside, v.s.clock)
	}
}

// losePackets loses a twentieth of the packets between the workers and the API.
func (v *victim) losePackets() (func() error, error) {
	if v.s.loses == nil {
		return nil, errors.New("no network was laid")
	}
	v.s.loses.Store(true)
	return func() error { v.s.loses.Store(false); return nil }, nil
}
