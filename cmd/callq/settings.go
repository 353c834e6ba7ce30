package main

import (
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
)

// This file alone translates the configuration into what the packages take.

func dispatcherConfig(cfg *config.Config, s servers, apply bool) dispatcher.Config {
	now := settings(cfg)
	return dispatcher.Config{
		Pool: s.pool, Redis: s.redis, Listen: s.listen, Logger: s.log, Metrics: s.metrics,
		Policy: now.Policy, Schedule: now.Schedule, Retention: now.Retention,
		Apply: apply, MaxData: int64(cfg.Calls.MaxData),
	}
}

// settings are what a reload changes in a dispatcher. (*reloader).reloads names the same sections.
func settings(cfg *config.Config) dispatcher.Settings {
	return dispatcher.Settings{
		Policy: rules(cfg), Schedule: dispatcher.Schedule(cfg.Schedule), Retention: maintenance.Retention(cfg.Retention),
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
		Pool: s.pool, Redis: s.redis, Logger: s.log, Metrics: s.metrics,
		Concurrency: cfg.Worker.Concurrency, Labels: cfg.Worker.Labels, ShutdownTimeout: cfg.Worker.ShutdownTimeout,
		HTTP: &task,
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
		Hosts: cfg.HTTPTask.Hosts, PrivateHosts: cfg.HTTPTask.PrivateHosts, AllowPrivate: cfg.HTTPTask.AllowPrivate,
		Store: cfg.HTTPTask.Store, Secrets: secrets,
	}, nil
}
