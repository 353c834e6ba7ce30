package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/local"
)

// servers are the Postgres and the Redis of one run.
type servers struct {
	postgres *local.PostgresServer
	redis    *local.RedisServer
	admin    *pgx.Conn
}

// postgresSettings leave Postgres as safe as it is by default: a commit waits for the disk. Only
// room is given, so that no checkpoint falls into one peer's turn and not into the other's.
func postgresSettings() map[string]string {
	return map[string]string{
		"max_connections": "200", "shared_buffers": "256MB",
		"max_wal_size": "4GB", "checkpoint_timeout": "30min",
	}
}

func startServers(ctx context.Context, settings map[string]string) (s *servers, err error) {
	s = &servers{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.postgres, err = local.StartPostgres(ctx, local.Postgres{Settings: settings}); err != nil {
		return s, err
	}
	if s.redis, err = local.StartRedis(ctx, local.Redis{}); err != nil {
		return s, err
	}
	if s.admin, err = pgx.Connect(ctx, s.postgres.URL("postgres")); err != nil {
		return s, fmt.Errorf("connect: %w", err)
	}
	return s, nil
}

func (s *servers) stop() error {
	var errs []error
	if s.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		errs = append(errs, s.admin.Close(ctx))
	}
	if s.redis != nil {
		errs = append(errs, s.redis.Stop())
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop())
	}
	return errors.Join(errs...)
}

func (s *servers) redisURL() string { return s.redis.URL() }

// withDatabase gives use a fresh database and an empty Redis, so that nobody works on what another
// has left.
func (s *servers) withDatabase(ctx context.Context, use func(url string) error) error {
	name := "bench_" + strings.ToLower(rand.Text())[:12]
	if _, err := s.admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("create a database: %w", err)
	}
	if err := s.emptyRedis(ctx); err != nil {
		return err
	}
	if err := s.checkpoint(ctx); err != nil {
		return err
	}
	err := use(s.postgres.URL(name))
	_, dropErr := s.admin.Exec(context.WithoutCancel(ctx), "DROP DATABASE "+name+" WITH (FORCE)")
	return errors.Join(err, dropErr)
}

func (s *servers) emptyRedis(ctx context.Context) error {
	options, err := redis.ParseURL(s.redis.URL())
	if err != nil {
		return fmt.Errorf("read Redis's URL: %w", err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("empty Redis: %w", err)
	}
	return nil
}

func (s *servers) checkpoint(ctx context.Context) error {
	if _, err := s.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// openPool opens a pool whose connections make the settings.
func openPool(ctx context.Context, url string, settings map[string]string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read Postgres's URL: %w", err)
	}
	config.MaxConns = conns
	for name, value := range settings {
		config.ConnConfig.RuntimeParams[name] = value
	}
	return pgxpool.NewWithConfig(ctx, config)
}
