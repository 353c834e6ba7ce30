package main

import (
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
)

// What the configuration says, in the words of the packages that it configures. Nothing else
// translates between them.

// servers are what every part uses.
type servers struct {
	pool    *pgxpool.Pool
	redis   redis.UniversalClient
	listen  *pgx.ConnConfig
	log     *slog.Logger
	metrics prometheus.Registerer // nil: none
}

func dispatcherConfig(cfg *config.Config, s servers) dispatcher.Config {
	return dispatcher.Config{
		Pool:      s.pool,
		Redis:     s.redis,
		Listen:    s.listen,
		Policy:    rules(cfg),
		Schedule:  dispatcher.Schedule(cfg.Schedule),
		Retention: maintenance.Retention(cfg.Retention),
		MaxData:   int64(cfg.Calls.MaxData),
		Logger:    s.log,
		Metrics:   s.metrics,
	}
}

func rules(cfg *config.Config) policy.Policy {
	var r policy.Policy
	for name, l := range cfg.Limits {
		for _, w := range l.Windows {
			r.Limits = append(r.Limits, policy.Limit{
				Name: name + w.Suffix, Rate: w.Rate, PerKey: l.Per == "key", Overrides: w.Overrides, CountCost: l.Count == "cost",
				Anchor: l.Anchor, Slack: w.Slack, SendWithin: w.SendWithin,
				Hosts: l.Hosts, RetryAfter: &l.RetryAfter,
			})
		}
	}
	for name, q := range cfg.Queues {
		r.Queues = append(r.Queues, policy.Queue{
			Name: name, Limits: windows(cfg, q.Limits), On: q.On, MaxAttempts: q.MaxAttempts,
			BackoffMin: q.Backoff.Min, BackoffMax: q.Backoff.Max, Timeout: q.Timeout, OnLost: q.OnLost, Hours: q.Hours,
		})
	}
	for name, b := range cfg.Budgets {
		r.Budgets = append(r.Budgets, policy.Budget{Name: name, Rate: b.Rate, Burst: int64(b.Burst), OnOutage: b.OnOutage})
	}
	return r
}

// windows are the names of limits, each with those of its further rates.
func windows(cfg *config.Config, limits []string) []string {
	var all []string
	for _, name := range limits {
		for _, w := range cfg.Limits[name].Windows {
			all = append(all, name+w.Suffix)
		}
	}
	return all
}

// workerConfig fails where a secret cannot be read.
func workerConfig(cfg *config.Config, s servers) (tasks.Config, error) {
	task, err := httpConfig(cfg)
	if err != nil {
		return tasks.Config{}, err
	}
	return tasks.Config{
		Pool:            s.pool,
		Redis:           s.redis,
		Concurrency:     cfg.Worker.Concurrency,
		Labels:          cfg.Worker.Labels,
		ShutdownTimeout: cfg.Worker.ShutdownTimeout,
		HTTP:            &task,
		Logger:          s.log,
		Metrics:         s.metrics,
	}, nil
}

// httpConfig fails where a secret cannot be read.
func httpConfig(cfg *config.Config) (tasks.HTTPConfig, error) {
	values, err := cfg.SecretValues()
	if err != nil {
		return tasks.HTTPConfig{}, err
	}
	secrets := map[string]tasks.Secret{}
	for name, value := range values {
		secrets[name] = tasks.Secret{Value: value, Hosts: cfg.HTTPTask.Secrets[name].Hosts}
	}
	return tasks.HTTPConfig{
		Hosts:        cfg.HTTPTask.Hosts,
		PrivateHosts: cfg.HTTPTask.PrivateHosts,
		AllowPrivate: cfg.HTTPTask.AllowPrivate,
		Store:        cfg.HTTPTask.Store,
		Secrets:      secrets,
	}, nil
}

// logger writes to stderr as the configuration says.
func (p *program) logger(cfg *config.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
		level = slog.LevelInfo // cannot happen: the configuration allows slog's names only
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(p.stderr, options))
	}
	return slog.New(slog.NewTextHandler(p.stderr, options))
}
