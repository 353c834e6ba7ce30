package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
)

// reloader answers SIGHUP. It reads the configuration again, and gives the dispatcher and the worker
// what they can take while they run. If the file is bad, it logs why, and all stays as it was.
type reloader struct {
	read    func() (*config.Config, error)
	give    []func(next *config.Config) error // to each part, those first that can refuse it
	log     *slog.Logger
	started *config.Config // what the parts were made of
	metrics *daemonMetrics
}

// reloads reports whether a part that has use for a key takes its new value while it runs. Others need a restart.
func reloads(key string) bool {
	section, _, _ := strings.Cut(key, ".")
	section, _, _ = strings.Cut(section, "[")
	return slices.Contains([]string{"limits", "queues", "routes", "budgets", "schedule", "retention", "http_task"}, section)
}

// onHangUp reloads at each SIGHUP until stop is called.
func (r *reloader) onHangUp(ctx context.Context) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	var reloading sync.WaitGroup
	reloading.Go(func() {
		for range signals {
			r.reload(ctx)
		}
	})
	return func() { signal.Stop(signals); close(signals); reloading.Wait() }
}

func (r *reloader) reload(ctx context.Context) {
	next, err := r.read()
	defer func() { r.metrics.reloaded(err) }()
	if file := r.started.File; err == nil && file != "" && next.File != file { // without it no limit would hold
		err = fmt.Errorf("%s is not there, and %s would be read", file, cmp.Or(next.File, "none"))
	}
	for _, give := range r.give {
		if err == nil {
			err = give(next)
		}
	}
	const kept = "configuration not reloaded, the former one stays in force"
	if problems, ok := errors.AsType[*config.Error](err); ok {
		for _, p := range problems.Problems {
			r.log.ErrorContext(ctx, kept, "at", p.Place(), "key", p.Path, "err", p.Message, "allowed", p.Allowed)
		}
		return
	}
	if err != nil {
		r.log.ErrorContext(ctx, kept, "err", err)
		return
	}
	r.log.InfoContext(ctx, "configuration read again", "file", next.File)
	if keys := slices.DeleteFunc(config.Changed(r.started, next), reloads); len(keys) > 0 {
		r.log.WarnContext(ctx, "changed settings need a restart", "keys", keys)
	}
}

// This file alone translates the configuration into what the packages take.

func dispatcherConfig(cfg *config.Config, s servers, apply bool) dispatcher.Config {
	now := settings(cfg)
	return dispatcher.Config{
		Pool: s.pool, Schema: cfg.Postgres.Schema, TableSchema: cfg.Postgres.TableSchema,
		Redis: s.redis, Budgets: s.budgets, Listen: s.listen, Logger: s.log, Metrics: s.metrics,
		Policy: now.Policy, Schedule: now.Schedule, Retention: now.Retention,
		Apply: apply, MaxData: int64(cfg.Calls.MaxData), Failover: policy.Failover(cfg.Postgres.Failover),
	}
}

// settings are what a reload changes in a dispatcher. reloads names the same sections.
func settings(cfg *config.Config) dispatcher.Settings {
	return dispatcher.Settings{
		Policy: rules(cfg), Schedule: dispatcher.Schedule(cfg.Schedule), Retention: retention(cfg),
	}
}

func retention(cfg *config.Config) maintenance.Retention {
	keep := maintenance.Retention(cfg.Retention)
	if keep.History == 0 {
		keep.History = -1
	}
	return keep
}

func rules(cfg *config.Config) policy.Policy {
	var r policy.Policy
	windows := map[string][]string{} // the names of a limit's, one for each of its rates
	for name, l := range cfg.Limits {
		proof, slack := l.Proof()
		for _, w := range l.Windows {
			windows[name] = append(windows[name], name+w.Suffix)
			r.Limits = append(r.Limits, policy.Limit{
				Name: name + w.Suffix, Rate: w.Rate, PerKey: l.Per == "key", Overrides: w.Overrides, CountCost: l.Count == "cost",
				Anchor: l.Anchor, Slack: slack, Proof: proof, ArriveWithin: l.ArriveWithin, SendWithin: l.SendWithin,
				Hosts: l.Hosts, RetryAfter: &l.RetryAfter, Headers: policy.Headers(l.Headers), Trust: l.Trust, Shares: l.Parts,
			})
		}
	}
	for name, q := range cfg.Queues {
		var limits []string
		for _, limit := range q.Limits {
			limits = append(limits, windows[limit]...)
		}
		r.Queues = append(r.Queues, policy.Queue{
			Name: name, Limits: limits, On: q.On, MaxAttempts: q.MaxAttempts,
			BackoffMin: q.Backoff.Min, BackoffMax: q.Backoff.Max, Timeout: q.Timeout, OnLost: q.OnLost, Hours: q.Hours,
			Store: q.Store, StoreMax: int64(q.StoreMax), StoreFor: q.StoreFor,
			Needs: needs(q), OnRefused: q.OnRefused, MaxRefusals: q.MaxRefusals,
			MaxWaiting: int64(q.MaxWaiting), MaxWaitingPerKey: int64(q.MaxWaitingPerKey), WhenFull: q.WhenFull,
		})
	}
	for name, b := range cfg.Budgets {
		r.Budgets = append(r.Budgets, policy.Budget{
			Name: name, Rate: b.Rule.Rate, Burst: b.Rule.Burst, BudgetShape: b.Rule.Shape, OnOutage: b.OnOutage,
		})
	}
	for _, route := range cfg.Routes {
		r.Routes = append(r.Routes, ruleOf(route))
	}
	return r
}

// ruleOf is a route as the policy has it. Its texts were checked.
func ruleOf(r config.Route) policy.Route {
	rule := policy.Route{
		Queues: r.Match.Queue, Tasks: r.Match.Task, Keys: r.Match.Key, Methods: r.Match.Method, Fields: r.Match.JSON, Discard: r.Discard, Continue: r.Continue,
		Set: policy.RouteSet{Queue: r.Set.Queue, Task: r.Set.Task, Key: r.Set.Key, RunIn: r.Set.RunAt, ExpiresIn: r.Set.ExpiresIn},
	}
	for _, host := range r.Match.URLHost {
		rule.Hosts = append(rule.Hosts, strings.ToLower(host))
	}
	if names, is := config.Path(r.Set.Key); is {
		rule.Set.Key, rule.Set.KeyField = "", names
	}
	if names, is := config.Path(r.Set.Cost); is {
		rule.Set.CostField = names
	} else {
		rule.Set.Cost, _ = strconv.ParseInt(r.Set.Cost, 10, 64)
	}
	if n, err := strconv.Atoi(r.Set.Priority); err == nil {
		rule.Set.Priority = &n
	}
	return rule
}

func needs(q config.Queue) map[string]int64 {
	var units map[string]int64
	for name, text := range q.Needs {
		n, _ := strconv.ParseInt(text, 10, 64) // it was checked
		if units == nil {
			units = map[string]int64{}
		}
		units[name] = n
	}
	return units
}

// workerConfig fails where a secret cannot be read.
func workerConfig(cfg *config.Config, s servers) (tasks.Config, error) {
	values, err := cfg.SecretValues()
	if err != nil {
		return tasks.Config{}, err
	}
	secrets := map[string]tasks.Secret{}
	for name, value := range values {
		secrets[name] = tasks.Secret{Value: value, Hosts: cfg.HTTPTask.Secrets[name].Hosts}
	}
	return tasks.Config{
		Pool: s.pool, Schema: cfg.Postgres.Schema, TableSchema: cfg.Postgres.TableSchema,
		Redis: s.redis, Budgets: s.budgets, Logger: s.log, Metrics: s.metrics,
		Concurrency: cfg.Worker.Concurrency, Labels: cfg.Worker.Labels, ShutdownTimeout: cfg.Worker.ShutdownTimeout,
		HTTP: &tasks.HTTPConfig{
			Hosts: cfg.HTTPTask.Hosts, PrivateHosts: cfg.HTTPTask.PrivateHosts, AllowPrivate: cfg.HTTPTask.AllowPrivate,
			Store: cfg.HTTPTask.Store, Secrets: secrets,
		},
	}, nil
}
