package dispatcher_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"
)

func (s *system) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(context.Background(), sql, args...); err != nil {
		s.t.Fatalf("%v\n%s", err, sql)
	}
}

// want fails the test unless the query answers true.
func (s *system) want(sql string, args ...any) {
	s.t.Helper()
	if ok := one[*bool](s, sql, args...); ok == nil || !*ok {
		s.t.Errorf("not so: %s", sql)
	}
}

// one is the single value that a query answers.
func one[T any](s *system, sql string, args ...any) T {
	s.t.Helper()
	var v T
	if err := s.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		s.t.Fatalf("%v\n%s", err, sql)
	}
	return v
}

// once runs one whole tick of a dispatcher of its own.
func (s *system) once(r dispatcher.Rules) {
	s.t.Helper()
	if err := s.dispatcher(r).Once(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// publish publishes rules, and opens nothing.
func (s *system) publish(r dispatcher.Rules) []string {
	s.t.Helper()
	changes, err := dispatcher.Publish(context.Background(), s.pool, r)
	if err != nil {
		s.t.Fatal(err)
	}
	return changes
}

// another is a process of its own: a dispatcher with its own connections.
func (s *system) another(r dispatcher.Rules) *dispatcher.Dispatcher {
	s.t.Helper()
	config := s.pool.Config().Copy()
	config.MaxConns = 3
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	d, err := dispatcher.New(dispatcher.Config{Pool: pool, Redis: s.redis, Rules: r, Logger: s.log})
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// calls inserts n calls of a queue, in the order of their ids.
func (s *system) calls(queue string, n int) {
	s.t.Helper()
	s.exec(`INSERT INTO call_queue (queue) SELECT $1 FROM generate_series(1, $2)`, queue, n)
}

// alive says that a worker of pool http lives, with so many slots; nothing runs there.
func (s *system) alive(slots int) { s.t.Helper(); s.aliveIn("http", slots, "http") }

func (s *system) aliveIn(pool string, slots int, tasks ...string) {
	s.t.Helper()
	s.exec(`INSERT INTO call_workers (id, pool, tasks, labels, slots, started_at, beat_at)
		VALUES ($1, $1, $2, '{}', $3, clock_timestamp(), clock_timestamp() + interval '1 hour')`, pool, tasks, slots)
}

// start starts every open attempt that has not started, as a worker would.
func (s *system) start(timeout time.Duration) {
	s.t.Helper()
	ids := one[[]int64](s, `SELECT coalesce(array_agg(call_id ORDER BY call_id), '{}') FROM call_open WHERE started_at IS NULL`)
	requests := make([]ledger.StartRequest, len(ids))
	for i, id := range ids {
		requests[i] = ledger.StartRequest{
			CallID: id, Token: 1000 + id, Timeout: timeout,
			Attempt: one[int32](s, `SELECT attempt FROM call_open WHERE call_id = $1`, id),
		}
	}
	answers, err := ledger.Start(context.Background(), s.pool, "w", requests)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, a := range answers {
		if a.StartedAt == nil {
			s.t.Fatalf("call %d was not started: %+v", a.CallID, a)
		}
	}
}

// pending are the ids of the Asynq tasks that wait in a pool's Asynq queue.
func (s *system) pending(pool string) []string {
	s.t.Helper()
	infos, err := asynq.NewInspectorFromRedisClient(s.redis).ListPendingTasks("callq:"+pool, asynq.PageSize(1000))
	if err != nil {
		s.t.Fatal(err)
	}
	ids := make([]string, len(infos))
	for i, info := range infos {
		ids[i] = info.ID
	}
	return ids
}

func queue(name string, limits ...string) dispatcher.QueueRule {
	return dispatcher.QueueRule{
		Name: name, Limits: limits, MaxAttempts: 3, BackoffMin: 50 * time.Millisecond, BackoffMax: time.Second,
		Timeout: 5 * time.Second, OnLost: "retry",
	}
}

// used is what each limit has given out: open attempts and usage.
func (s *system) used(limit string) int64 {
	s.t.Helper()
	return one[int64](s, `SELECT (SELECT count(*) FROM call_open WHERE limits @> ARRAY[$1])
		+ (SELECT coalesce(sum(used), 0) FROM call_usage WHERE limit_name = $1)`, limit)
}

func parallel(t *testing.T, name string, run func(t *testing.T, s *system)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		run(t, newSystem(t))
	})
}

var _ = fmt.Sprint
