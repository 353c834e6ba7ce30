package dispatcher_test

import (
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
	"github.com/hibiken/asynq"
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

// produce inserts calls and looks after them.
func produce(ctx context.Context, pool *pgxpool.Pool) error {
	var option callqueue.Option = callqueue.MaxData(1 << 20)
	var client *callqueue.Client
	client, err := callqueue.New(pool, option)
	if err != nil {
		return err
	}
	call := callqueue.Call{Queue: "mail", Task: "send", Priority: new(callqueue.MinPriority), Data: map[string]string{"to": "a@example.com"}}
	id, err := client.Insert(ctx, call)
	if invalid, ok := errors.AsType[*callqueue.InvalidCallError](err); ok {
		return invalid
	}
	if errors.Is(err, callqueue.ErrDuplicate) {
		return nil
	}
	var record *callqueue.Record
	if record, err = client.Get(ctx, id); err != nil {
		return err
	}
	var status callqueue.Status = record.Status
	var outcome callqueue.Outcome = callqueue.OutcomeDone
	if status == callqueue.StatusFailed || string(outcome) == "" {
		return errors.New(*record.ErrorMessage)
	}
	return nil
}

// work makes calls: with a custom handler, an Asynq mux, and the built-in task http.
func work(ctx context.Context, pool *pgxpool.Pool, rdb redis.UniversalClient, mux *asynq.ServeMux) error {
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
		var client *http.Client = call.Client
		if _, err := client.Get("https://api.example.com"); err != nil {
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
	worker.Handle("email", tasks.Asynq(mux))
	if err := worker.Reload(config); err != nil {
		return err
	}
	return worker.Run(ctx)
}

// dispatch hands calls out, under a limit.
func dispatch(ctx context.Context, pool *pgxpool.Pool, rdb redis.UniversalClient) error {
	var rate dispatcher.Rate
	rate, err := dispatcher.ParseRate("100/1h")
	if err != nil {
		return err
	}
	bucket, err := dispatcher.ParseRateOf("10/s", dispatcher.TokenBucket, 100, "")
	if err != nil {
		return err
	}
	var algorithm dispatcher.Algorithm = bucket.Algorithm
	var anchor dispatcher.Anchor = dispatcher.AnchorStart
	limit := dispatcher.Limit{Name: string(algorithm), Rate: bucket, Anchor: anchor, PerKey: true}
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
