package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/callq/callq/internal/local"
)

// fault is what is done to a callq, and which alerts fire of it.
type fault struct {
	alert string // it is staged for this one; empty: nothing is wrong
	name  string
	rules string   // YAML beside the servers; the calls of most are in the queue q
	roles []string // the processes, as commands of callq; default: serve
	does  []step
	fires []string // exactly these, with their labels: CallqLimitFull{limit="api"}
}

// step is a part of a fault.
type step func(context.Context, *world) error

// Paths of the API.
const (
	answers = "/"
	refuses = "/refuses" // 429
	closes  = "/closes"  // 429, and to come again in an hour
	hangs   = "/hangs"
)

const hourly = "limits: {api: {rate: 3/1h}}\nqueues: {q: {limits: [api]}}\n"

func faults() []fault {
	return []fault{
		{
			name:  "nothing is wrong",
			rules: "limits: {api: {rate: 1000/1m}}\nbudgets: {llm: {rate: 100/s}}\nqueues: {q: {limits: [api]}, drawn: {}}\nschedule: {verify: '@every 1s', retention: '@every 1s'}\n",
			roles: []string{"dispatch", "work", "drawer"},
			does: []step{
				insert(20, "q", "http", answers), insert(5, "drawn", "draw", ""), until(`SELECT count(*) = 25 FROM call_queue WHERE status = 'done'`),
				until(`SELECT count(*) = 2 FROM callq.call_meta WHERE name IN ('verified', 'retention')`),
				meanwhile(insert(1, "q", "http", answers)), meanwhile(insert(1, "drawn", "draw", "")),
			},
		},
		{
			alert: "CallqLimitFull", name: "3 calls an hour may go, and 5 are asked for", rules: hourly,
			does:  []step{insert(5, "q", "http", answers), until(`SELECT count(*) = 3 FROM call_queue WHERE status = 'done'`)},
			fires: []string{`CallqLimitFull{limit="api"}`},
		},
		{
			alert: "CallqLimitClosed", name: "the API closes for an hour", rules: "limits: {api: {rate: 3/1m}}\nqueues: {q: {limits: [api]}}\n",
			does:  []step{insert(2, "q", "http", closes), shows("serve", `callq_limit_closed{cause="refused",limit="api"} 1`)},
			fires: []string{`CallqLimitClosed{cause="refused",limit="api"}`},
		},
		{
			alert: "CallqLimitClosed", name: "two limits are paused, and calls wait for one",
			rules: "limits: {api: {rate: 3/1h}, idle: {rate: 3/1h}}\nqueues: {q: {limits: [api]}, quiet: {limits: [idle]}}\n",
			does: []step{
				command("limits", "pause", "api", "--reason", "staged"), command("limits", "pause", "idle", "--reason", "staged"), insert(2, "q", "http", answers),
				shows("serve", `callq_limit_waiting_calls{limit="api"} 2`),
			},
			fires: []string{`CallqLimitClosed{cause="paused",limit="api"}`},
		},
		{
			alert: "CallqRefused", name: "the API answers 429",
			rules: "limits: {api: {rate: 1000/1s}}\nqueues: {q: {limits: [api], on_refused: retry, max_attempts: 1000, backoff: 100ms}}\n",
			does:  []step{insert(10, "q", "http", refuses), until(`SELECT count(*) > 5 FROM call_attempts`)},
			fires: []string{`CallqRefused{limit="api"}`},
		},
		{
			alert: "CallqBacklogGrows", name: "more is inserted than a limit lets go", rules: hourly,
			does: []step{insert(150, "q", "http", answers), meanwhile(insert(1, "q", "http", answers)), until(`SELECT count(*) = 3 FROM call_queue WHERE status = 'done'`)},
			fires: []string{
				`CallqBacklogGrows{queue="q"}`, `CallqLimitFull{limit="api"}`,
			},
		},
		{
			alert: "CallqOldestWaits", name: "a queue is paused for two hours",
			rules: "queues: {q: {}}\n",
			does: []step{
				command("queues", "pause", "q", "--reason", "staged"),
				sql(`INSERT INTO call_queue (queue, run_at) VALUES ('q', now() - interval '2 h')`),
				shows("serve", `callq_queue_calls{queue="q",state="due"} 1`),
			},
			fires: []string{`CallqOldestWaits{queue="q"}`},
		},
		{
			alert: "CallqDispatchStopped", name: "the only dispatcher is killed", roles: []string{"dispatch", "work"},
			does:  []step{kill("dispatch"), until(`SELECT NOT bool_or(callq.alive(heartbeat_at)) FROM callq.call_dispatchers`)},
			fires: []string{`CallqDispatchStopped{}`, `CallqMetricsMissing{}`},
		},
		{
			alert: "CallqDispatchStopped", name: "a dispatcher's heartbeats fail",
			does:  []step{sql(`ALTER TABLE callq.call_dispatchers ADD CONSTRAINT staged CHECK (false) NOT VALID`), shows("serve", `callq_dispatchers_live 0`)},
			fires: []string{`CallqDispatchStopped{}`},
		},
		{
			alert: "CallqTicksFail", name: "a migration is missing", roles: []string{"dispatch", "work"},
			does:  []step{sql(`ALTER TABLE callq.call_open RENAME deadline TO missing`), shows("dispatch", `callq_ticks_total{result="error"}`)},
			fires: []string{`CallqTicksFail{}`},
		},
		{
			alert: "CallqWorkersMissing", name: "no worker handles a task", rules: "queues: {q: {}}\n",
			does:  []step{insert(3, "q", "nobodys", ""), shows("serve", `callq_queue_unhandled_calls{queue="q"} 3`)},
			fires: []string{`CallqWorkersMissing{queue="q"}`},
		},
		{
			alert: "CallqWorkersIdle", name: "the workers use another Redis", rules: "queues: {q: {}}\n", roles: []string{"dispatch", "work@other"},
			does:  []step{insert(3, "q", "http", answers), shows("dispatch", `callq_queue_calls{queue="q",state="dispatched"} 3`)},
			fires: []string{`CallqWorkersIdle{}`},
		},
		{
			alert: "CallqWorkersIdle", name: "Redis stops", rules: "queues: {q: {}}\n",
			does: []step{
				stop(func(w *world) *local.RedisServer { return w.redis }), insert(3, "q", "http", answers),
				shows("serve", `callq_queue_calls{queue="q",state="dispatched"} 3`),
			},
			fires: []string{`CallqWorkersIdle{}`, `CallqTicksFail{}`},
		},
		{
			alert: "CallqAttemptsLost", name: "a worker is killed amid a call", roles: []string{"dispatch", "work"}, rules: "queues: {q: {timeout: 1s, on_lost: fail}}\n",
			does: []step{
				insert(1, "q", "http", hangs), until(`SELECT count(*) = 1 FROM callq.call_open WHERE started_at IS NOT NULL`), kill("work"),
				until(`SELECT count(*) = 1 FROM call_attempts WHERE outcome = 'lost'`),
			},
			fires: []string{`CallqAttemptsLost{}`},
		},
		{
			alert: "CallqVerifyFailed", name: "the ledger was changed by hand", rules: "queues: {q: {}}\nschedule: {verify: '@every 1s'}\n",
			does: []step{
				insert(1, "q", "http", answers), until(`SELECT count(*) = 1 FROM call_queue WHERE status = 'done'`), sql(`DELETE FROM call_attempts`),
				// Else the next run would be half a minute after the first.
				sql(`UPDATE callq.call_meta SET at = now() - interval '1 h' WHERE name = 'verify'`),
				until(`SELECT count(*) = 1 FROM callq.call_meta WHERE name = 'verified' AND position > 0`),
			},
			fires: []string{`CallqVerifyFailed{}`},
		},
		{
			alert: "CallqVerifyNotRun", name: "verify last ran three days ago", rules: "schedule: {verify: '@every 1s'}\n",
			does: []step{
				until(`SELECT count(*) = 1 FROM callq.call_meta WHERE name = 'verified'`),
				sql(`UPDATE callq.call_meta SET at = now() + interval '9 min' WHERE name = 'verify'`), // another has the turn
				sql(`UPDATE callq.call_meta SET at = at - interval '3 days' WHERE name = 'verified'`),
			},
			fires: []string{`CallqVerifyNotRun{}`},
		},
		{
			alert: "CallqClockOff", name: "the clock of Postgres is two seconds ahead",
			does:  []step{setClock("+2"), shows("serve", `callq_clock_ahead_seconds 1.`, `callq_clock_ahead_seconds 2`)},
			fires: []string{`CallqClockOff{instance="serve"}`},
		},
		{
			alert: "CallqRetentionBehind", name: "retention last succeeded three days ago", rules: "schedule: {retention: '@every 1s'}\n",
			does: []step{
				until(`SELECT count(*) = 1 FROM callq.call_meta WHERE name = 'retention'`),
				sql(`ALTER TABLE callq.call_meta ADD CONSTRAINT staged CHECK (name <> 'retention' OR at < now() - interval '2 days') NOT VALID`),
				sql(`UPDATE callq.call_meta SET at = at - interval '3 days' WHERE name = 'retention'`),
			},
			fires: []string{`CallqRetentionBehind{}`},
		},
		{
			alert: "CallqMetricsMissing", name: "a process does not reach Postgres",
			does: []step{
				func(ctx context.Context, w *world) error {
					return w.admin(ctx, "ALTER DATABASE "+w.database+" ALLOW_CONNECTIONS false",
						"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+w.database+"'")
				},
				shows("serve", `callq_gauges_up 0`),
			},
			fires: []string{`CallqMetricsMissing{instance="serve"}`, `CallqTicksFail{}`},
		},
		{
			alert: "CallqMetricsMissing", name: "no process is left",
			does:  []step{kill("serve")},
			fires: []string{`CallqMetricsMissing{}`, `CallqDispatchStopped{}`},
		},
		{
			alert: "CallqBudgetOutage", name: "the Redis of budgets stops", roles: []string{"serve", "drawer"},
			rules: "budgets: {llm: {rate: 100/s}}\nqueues: {q: {max_attempts: 1000, backoff: 100ms, timeout: 300ms}}\n",
			does: []step{
				insert(3, "q", "draw", ""), until(`SELECT count(*) = 3 FROM call_queue WHERE status = 'done'`),
				stop(func(w *world) *local.RedisServer { return w.other }), insert(3, "q", "draw", ""), shows("drawer", `callq_budget_outages_total{budget="llm"}`),
			},
			fires: []string{`CallqBudgetOutage{budget="llm"}`},
		},
		{
			alert: "CallqBudgetOutage", name: "the Redis of budgets that a queue needs stops", roles: []string{"serve", "drawer"},
			rules: "budgets: {llm: {rate: 100/s}}\nqueues: {q: {needs: {llm: 1}}}\n",
			does: []step{
				insert(3, "q", "draw", ""), until(`SELECT count(*) = 3 FROM call_queue WHERE status = 'done'`),
				stop(func(w *world) *local.RedisServer { return w.other }), insert(3, "q", "draw", ""), shows("serve", `callq_budget_claim_outages_total{budget="llm",queue="q"}`),
			},
			fires: []string{`CallqBudgetOutage{budget="llm"}`},
		},
	}
}

// insert inserts n calls; those of the task http go to a path of the API.
func insert(n int, queue, task, path string) step {
	return func(ctx context.Context, w *world) error {
		return w.exec(ctx, `INSERT INTO call_queue (queue, task, call_data) SELECT $1, $2, jsonb_build_object('url', $3::text) FROM generate_series(1, $4)`,
			queue, task, w.api.URL+path, n)
	}
}

func sql(statement string) step {
	return func(ctx context.Context, w *world) error { return w.exec(ctx, statement) }
}

// command runs a command of callq.
func command(args ...string) step {
	return func(ctx context.Context, w *world) error { return w.run(ctx, args...) }
}

func kill(role string) step {
	return func(_ context.Context, w *world) error { return w.processes[role].kill() }
}

func stop(redis func(*world) *local.RedisServer) step {
	return func(_ context.Context, w *world) error { return redis(w).Stop() }
}

func setClock(to string) step {
	return func(_ context.Context, w *world) error { return os.WriteFile(w.clock, []byte(to+"\n"), 0o600) }
}

// meanwhile takes a step ten times a second from now on.
func meanwhile(s step) step {
	return func(ctx context.Context, w *world) error {
		w.beside.Go(func() {
			for ctx.Err() == nil && s(ctx, w) == nil {
				time.Sleep(100 * time.Millisecond)
			}
		})
		return nil
	}
}

// until waits until a query answers true.
func until(query string) step {
	return wait(query, func(ctx context.Context, w *world) (is bool, err error) {
		return is, w.pool.QueryRow(ctx, query).Scan(&is)
	})
}

// shows waits until a process exports a line that begins in one of these ways.
func shows(role string, lines ...string) step {
	return wait(fmt.Sprintf("%s exports %q", role, lines), func(ctx context.Context, w *world) (bool, error) {
		text, err := w.processes[role].metrics(ctx)
		for _, line := range lines {
			if strings.Contains(text, "\n"+line) {
				return true, nil
			}
		}
		return false, errors.Join(err, errors.New(text))
	})
}

func wait(what string, is func(context.Context, *world) (bool, error)) step {
	return func(ctx context.Context, w *world) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		for {
			ok, err := is(ctx, w)
			if ok {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("not so within a minute (%w): %s", err, what)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}
