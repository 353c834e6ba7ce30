package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	sqlConns = 4    // that drain
	sqlClaim = 1000 // calls in one claim
)

// sqlSystem is what Postgres itself allows: a table of calls, and the statements that a queue cannot do without. A call
// is claimed with many others and then done with them; what the claim is for, a call that is lost or fails, it has not.
type sqlSystem struct{ pool *pgxpool.Pool }

func openSQL(ctx context.Context, databaseURL, _ string) (system, error) {
	pool, err := openPool(ctx, databaseURL, nil)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, sqlSchema); err != nil {
		pool.Close()
		return nil, err
	}
	return &sqlSystem{pool: pool}, nil
}

const sqlSchema = `
CREATE TABLE calls (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status smallint NOT NULL DEFAULT 0, -- 1: claimed, 2: done
    attempt int NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    dispatched_at timestamptz,
    finished_at timestamptz,
    data jsonb NOT NULL,
    error text
);
CREATE INDEX calls_new_idx ON calls (id) WHERE status = 0`

func (s *sqlSystem) close() { s.pool.Close() }

func (s *sqlSystem) insertSingles(ctx context.Context, n int) error {
	return byProducers(producers, n, func(n int) error {
		data, err := json.Marshal(newPayload(n))
		if err != nil {
			return err
		}
		_, err = s.pool.Exec(ctx, `INSERT INTO calls (data) VALUES ($1)`, data)
		return err
	})
}

func (s *sqlSystem) insertBulk(ctx context.Context, n int) error {
	return inBatches(n, func(first, count int) error {
		rows := pgx.CopyFromSlice(count, func(i int) ([]any, error) {
			data, err := json.Marshal(newPayload(first + i))
			return []any{data}, err
		})
		_, err := s.pool.CopyFrom(ctx, pgx.Identifier{"calls"}, []string{"data"}, rows)
		return err
	})
}

func (s *sqlSystem) vacuum(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "VACUUM ANALYZE calls")
	return err
}

func (s *sqlSystem) start(ctx context.Context, handled func()) (stop func() error, err error) {
	var wg sync.WaitGroup
	failures := make([]error, sqlConns)
	for i := range sqlConns {
		wg.Go(func() { failures[i] = s.drain(ctx, handled) })
	}
	return func() error {
		wg.Wait()
		return errors.Join(failures...)
	}, nil
}

// drain claims and finishes until nothing is left to claim. A call counts as handled once that is recorded.
func (s *sqlSystem) drain(ctx context.Context, handled func()) error {
	for {
		ids, err := s.claim(ctx)
		if err != nil || len(ids) == 0 {
			return err
		}
		if _, err := s.pool.Exec(ctx, finishSQL, ids); err != nil {
			return fmt.Errorf("finish: %w", err)
		}
		for range ids {
			handled()
		}
	}
}

func (s *sqlSystem) claim(ctx context.Context) ([]int64, error) {
	rows, _ := s.pool.Query(ctx, claimSQL, sqlClaim) // ForEachRow returns its error
	ids := make([]int64, 0, sqlClaim)
	var id int64
	var data []byte
	_, err := pgx.ForEachRow(rows, []any{&id, &data}, func() error {
		ids = append(ids, id)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return ids, nil
}

// claimSQL locks in a CTE that is materialized: IN (SELECT … LIMIT … FOR UPDATE) may run it again, and claim more.
const claimSQL = `
WITH claimed AS MATERIALIZED (
    SELECT id FROM calls WHERE status = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE calls c SET status = 1, attempt = c.attempt + 1, dispatched_at = clock_timestamp()
FROM claimed
WHERE c.id = claimed.id
RETURNING c.id, c.data`

const finishSQL = `UPDATE calls SET status = 2, finished_at = clock_timestamp() WHERE id = ANY ($1) AND status = 1`

// allDone has nothing to ask: the statement that records a call comes before it counts as handled.
func (s *sqlSystem) allDone(context.Context) (bool, error) { return true, nil }

func (s *sqlSystem) check(ctx context.Context, inserted, done int) error {
	got := make([]int, 2)
	err := s.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE status = 2) FROM calls`).Scan(&got[0], &got[1])
	if err != nil {
		return err
	}
	if want := []int{inserted, done}; !slices.Equal(got, want) {
		return fmt.Errorf("calls, calls done: %v, want %v", got, want)
	}
	return nil
}
