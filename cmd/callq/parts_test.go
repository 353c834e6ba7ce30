package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
)

// Every setting reaches the part that it is for.
func TestParts(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(" hidden\n"), 0o600))
	cfg := &config.Config{
		Limits: map[string]config.Limit{"api": {
			Anchor: limit.AnchorFinish, Per: "key", Hosts: []string{"h"}, RetryAfter: time.Minute, Windows: []limit.Window{
				{Rate: limit.Rate{Units: 5, Window: time.Minute}, Overrides: map[string]int64{"k": 7}, Slack: time.Second, SendWithin: 2 * time.Second},
				{Suffix: "/1h", Rate: limit.Rate{Units: 50, Window: time.Hour}, Slack: time.Minute, SendWithin: 3 * time.Second},
			},
		}},
		Queues: map[string]config.Queue{"pay": {
			Limits: []string{"api"}, MaxAttempts: 4, Backoff: config.Backoff{Min: time.Second, Max: time.Hour}, Timeout: time.Minute, OnLost: "fail",
		}},
		Schedule:  config.Schedule{Dispatch: "@every 2s", Retention: "@daily", Vacuum: "@weekly"},
		Retention: config.Retention{Done: 1, Failed: 2, Cancelled: 3},
		Worker:    config.Worker{Concurrency: 7, Labels: []string{"a"}, ShutdownTimeout: 5},
		HTTPTask: config.HTTPTask{
			Hosts: []string{"h"}, PrivateHosts: []string{"p"}, AllowPrivate: true, Store: "all",
			Secrets: map[string]config.Secret{"KEY": {File: secret, Hosts: []string{"s"}}},
		},
		Calls: config.Calls{MaxData: 1000},
	}
	wantDispatcher := dispatcher.Config{
		Policy: policy.Policy{
			Limits: []policy.Limit{{
				Name: "api", Rate: limit.Rate{Units: 5, Window: time.Minute}, PerKey: true, Overrides: map[string]int64{"k": 7},
				Anchor: limit.AnchorFinish, Slack: time.Second, SendWithin: 2 * time.Second,
				Hosts: []string{"h"}, RetryAfter: new(time.Minute),
			}, {
				Name: "api/1h", Rate: limit.Rate{Units: 50, Window: time.Hour}, PerKey: true,
				Anchor: limit.AnchorFinish, Slack: time.Minute, SendWithin: 3 * time.Second,
				Hosts: []string{"h"}, RetryAfter: new(time.Minute),
			}},
			Queues: []policy.Queue{{
				Name: "pay", Limits: []string{"api", "api/1h"}, MaxAttempts: 4, BackoffMin: time.Second, BackoffMax: time.Hour, Timeout: time.Minute, OnLost: "fail",
			}},
		},
		Schedule:  dispatcher.Schedule{Dispatch: "@every 2s", Retention: "@daily", Vacuum: "@weekly"},
		Retention: maintenance.Retention{Done: 1, Failed: 2, Cancelled: 3},
		MaxData:   1000,
	}
	wantWorker := tasks.Config{
		Concurrency: 7, Labels: []string{"a"}, ShutdownTimeout: 5,
		HTTP: &tasks.HTTPConfig{
			Hosts: []string{"h"}, PrivateHosts: []string{"p"}, AllowPrivate: true, Store: "all",
			Secrets: map[string]tasks.Secret{"KEY": {Value: "hidden", Hosts: []string{"s"}}},
		},
	}
	s := servers{} // its typed nil must not hide: Redis is set by it alone
	got := dispatcherConfig(cfg, s, false)
	got.Redis = nil
	if diff := cmp.Diff(wantDispatcher, got); diff != "" {
		t.Errorf("dispatcher: %s", diff)
	}
	gotWorker, err := workerConfig(cfg, s)
	must(t, err)
	gotWorker.Redis = nil
	if diff := cmp.Diff(wantWorker, gotWorker); diff != "" {
		t.Errorf("worker: %s", diff)
	}
}
