package dispatcher_test

import (
	"cmp"
	"context"
	"errors"
	"go/parser"
	"go/token"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/tasks"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// What follows is a program as another module has it: it names all that such a program needs of callqueue, tasks and
// dispatcher, and imports no internal package.
func TestOutsideProgram(t *testing.T) {
	t.Parallel()
	_ = []any{produce, work, dispatch} // compiled, not run
	file, err := parser.ParseFile(token.NewFileSet(), "outside_test.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range file.Imports {
		if strings.Contains(spec.Path.Value, "/internal/") {
			t.Errorf("a program of another module cannot import %s", spec.Path.Value)
		}
	}
}

// produce inserts a call and looks after it.
func produce(ctx context.Context, pool *pgxpool.Pool, options ...callqueue.Option) (callqueue.Status, callqueue.Outcome, error) {
	var client *callqueue.Client
	client, err := callqueue.New(pool, append(options, callqueue.MaxData(1<<20))...)
	if err != nil {
		return "", "", err
	}
	call := callqueue.Call{Queue: "mail", Task: "send", Priority: new(callqueue.MinPriority), Data: map[string]string{"to": "a@example.com"}}
	id, err := client.Insert(ctx, call)
	if invalid, ok := errors.AsType[*callqueue.InvalidCallError](err); ok {
		return callqueue.StatusFailed, callqueue.OutcomeNotSent, invalid
	}
	if err != nil && !errors.Is(err, callqueue.ErrDuplicate) {
		return "", "", err
	}
	var record *callqueue.Record
	if record, err = client.Get(ctx, id); err != nil {
		return "", "", err
	}
	return record.Status, callqueue.OutcomeDone, nil
}

// work makes calls: with a custom handler, and the built-in task http.
func work(ctx context.Context, pool *pgxpool.Pool, rdb redis.UniversalClient, send func(*http.Client) (int, error)) error {
	config := tasks.HTTPConfig{
		Hosts:   []string{"api.example.com"},
		Secrets: map[string]tasks.Secret{"KEY": {Value: "hidden", Hosts: []string{"api.example.com"}}},
	}
	var worker *tasks.Worker
	worker, err := tasks.New(tasks.Config{Pool: pool, Redis: rdb, Concurrency: 10, HTTP: &config, Client: &tasks.HTTPConfig{}})
	if err != nil {
		return err
	}
	var handler tasks.Handler = func(ctx context.Context, call *tasks.Call) error {
		if _, err := send(call.Client); err != nil {
			return tasks.NotSent(err)
		}
		err := call.Draw(ctx, "search", 1)
		if late, ok := errors.AsType[*tasks.BudgetError](err); ok {
			return tasks.Snooze(late.Wait)
		}
		if errors.Is(context.Cause(ctx), tasks.ErrCancelled) {
			return tasks.Permanent(tasks.RetryAfter(time.Minute, err))
		}
		return call.Settle(7)
	}
	worker.Handle("send", handler)
	if err := worker.Reload(config); err != nil {
		return err
	}
	return worker.Run(ctx)
}

// dispatch hands calls out, under limits.
func dispatch(
	ctx context.Context, pool *pgxpool.Pool, rdb redis.UniversalClient, algorithm dispatcher.Algorithm, anchor dispatcher.Anchor,
) error {
	var rate dispatcher.Rate
	rate, err := dispatcher.ParseRate("100/1h")
	if err != nil {
		return err
	}
	bucket, err := dispatcher.ParseRateOf("10/s", cmp.Or(algorithm, "token_bucket"), 100, "")
	if err != nil {
		return err
	}
	limit := dispatcher.Limit{Name: "bucket", Rate: bucket, Anchor: cmp.Or(anchor, dispatcher.AnchorStart), PerKey: true}
	queue := dispatcher.Queue{
		Name: "mail", Limits: []string{"api", limit.Name}, MaxAttempts: 3, BackoffMin: time.Second, BackoffMax: time.Minute,
		Timeout: time.Minute, OnLost: "retry",
	}
	settings := dispatcher.Settings{
		Policy: dispatcher.Policy{
			Limits:  []dispatcher.Limit{{Name: "api", Rate: rate}, limit, {Name: "sockets", Rate: dispatcher.Rate{Units: 50}}},
			Queues:  []dispatcher.Queue{queue},
			Budgets: []dispatcher.Budget{{Name: "search", Rate: rate, Burst: 1, OnOutage: "closed"}},
		},
		Schedule:  dispatcher.Schedule{Dispatch: "@every 1s"},
		Retention: dispatcher.Retention{Done: time.Hour},
	}
	var d *dispatcher.Dispatcher
	d, err = dispatcher.New(dispatcher.Config{Pool: pool, Redis: rdb, Policy: settings.Policy, Schedule: settings.Schedule, Retention: settings.Retention})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}
