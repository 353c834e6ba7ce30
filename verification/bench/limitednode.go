package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// limitedNode is a peer in processes of node/limited.mjs, which says how it limits.
type limitedNode struct {
	printedRuns
	name  string
	place pacedPlace
	// One of these says how many jobs are not completed: SQL, or what asks Redis.
	sql string
	ask func(context.Context, *redis.Client) (int64, error)

	pool  *pgxpool.Pool
	redis *redis.Client
}

// What is completed graphile-worker deletes, and BullMQ keeps in a set of its own.
func limitedNodePeers() []limitedPeer {
	return []limitedPeer{
		{name: "BullMQ", redis: true, node: true, open: openLimitedNode("BullMQ", "", leftInBullMQ)},
		{
			name: "graphile-worker + Redis", postgres: true, redis: true, node: true,
			open: openLimitedNode("graphile-worker + Redis", `SELECT count(*) FROM graphile_worker._private_jobs`, nil),
		},
		{
			name: "pg-boss batches", postgres: true, node: true,
			open: openLimitedNode("pg-boss batches", `SELECT count(*) FROM pgboss.job WHERE name = 'call' AND state <> 'completed'`, nil),
		},
	}
}

func openLimitedNode(name, sql string, ask func(context.Context, *redis.Client) (int64, error)) func(context.Context, pacedPlace) (limitedSystem, error) {
	return func(ctx context.Context, place pacedPlace) (limitedSystem, error) {
		s := &limitedNode{name: name, place: place, sql: sql, ask: ask}
		options, err := redis.ParseURL(place.redis)
		if err != nil {
			return nil, err
		}
		if s.pool, err = openPool(ctx, place.postgres, nil); err != nil {
			return nil, err
		}
		s.redis = redis.NewClient(options)
		return s, nil
	}
}

func (s *limitedNode) close() {
	s.pool.Close()
	_ = s.redis.Close() // its server is emptied and goes
}

// program is node with the arguments that run limited.mjs, and the folder where it finds its modules.
func (s *limitedNode) program(ctx context.Context, verb string, calls int) (node, folder string, args []string, err error) {
	if folder, err = nodeFolder(); err != nil {
		return "", "", nil, err
	}
	if node, err = findNode(ctx, folder); err != nil {
		return "", "", nil, err
	}
	text, err := nodeFiles.ReadFile("node/limited.mjs")
	args = []string{
		"--input-type=module", "--eval", string(text), "--",
		s.name, verb, s.place.api, strconv.Itoa(s.place.rate), strconv.Itoa(calls),
	}
	return node, folder, args, err
}

func (s *limitedNode) environ() []string {
	return []string{"DATABASE_URL=" + s.place.postgres, "REDIS_URL=" + s.place.redis}
}

func (s *limitedNode) insert(ctx context.Context, n int) error {
	node, folder, args, err := s.program(ctx, "insert", n)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, node, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = folder, append(os.Environ(), s.environ()...), os.Stderr
	return cmd.Run()
}

func (s *limitedNode) start(ctx context.Context) (all processes, err error) {
	node, folder, args, err := s.program(ctx, "work", 0)
	if err != nil {
		return nil, err
	}
	for range limitedWorkers {
		if err := all.addIn(ctx, folder, false, s.environ(), node, args...); err != nil {
			return nil, errors.Join(err, all.stop())
		}
	}
	return all, nil
}

func (s *limitedNode) left(ctx context.Context) (int, error) {
	if s.ask != nil {
		n, err := s.ask(ctx, s.redis)
		return int(n), err
	}
	var n int
	err := s.pool.QueryRow(ctx, s.sql).Scan(&n)
	return n, err
}

// leftInBullMQ sums the lists and sets of jobs that have not completed.
func leftInBullMQ(ctx context.Context, client *redis.Client) (sum int64, err error) {
	const queue = "bull:call:"
	for _, list := range []string{"wait", "active", "paused"} {
		n, err := client.LLen(ctx, queue+list).Result()
		if err != nil {
			return 0, fmt.Errorf("count %s: %w", list, err)
		}
		sum += n
	}
	for _, set := range []string{"delayed", "prioritized", "failed"} {
		n, err := client.ZCard(ctx, queue+set).Result()
		if err != nil {
			return 0, fmt.Errorf("count %s: %w", set, err)
		}
		sum += n
	}
	return sum, nil
}
