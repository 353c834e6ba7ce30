package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/cmd/callq/config"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
)

func (p *program) statusCommand() *cobra.Command {
	watch, every := false, durationFlag(time.Second)
	cmd := &cobra.Command{
		Use: "status", Short: "Show queues, limits, budgets, workers and the oldest call on one screen",
		Long: "Show queues, limits, budgets, workers and the oldest call on one screen; with --watch again and again, until\n" +
			"Ctrl-C. What is free of budgets it asks Redis. With -o jsonl each is one line. Of the calls that wait in a\n" +
			"queue for one task those that were cancelled or deleted are not counted; where there are more than 10,000\n" +
			"they are, until claims have passed them.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case watch && every < durationFlag(100*time.Millisecond):
				return usagef("--every is %s, less than 100ms", time.Duration(every))
			case !watch && cmd.Flags().Changed("every"):
				return usagef("--every is for --watch")
			case watch:
				return p.watchStatus(cmd.Context(), time.Duration(every))
			}
			return p.ask(cmd.Context(), func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
				return p.showStatus(ctx, cfg, pool)
			})
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again and again, until Ctrl-C")
	cmd.Flags().Var(&every, "every", "how often, with --watch")
	return cmd
}

func (p *program) showStatus(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
	s, err := readStatus(ctx, pool)
	if err != nil {
		return err
	}
	lookAtBudgets(ctx, cfg, s.Budgets)
	if p.output != "table" {
		return p.printJSON(s)
	}
	return p.printStatus(s)
}

// status is what one screen shows, read in one snapshot.
type status struct {
	At        time.Time   `json:"at"` // Postgres's clock
	Queues    []queueRow  `json:"queues"`
	Limits    []limitRow  `json:"limits"`
	Budgets   []budgetRow `json:"budgets"`
	Workers   []workerRow `json:"workers"`
	Unhandled []taskRow   `json:"unhandled"` // tasks of waiting calls that no live worker handles
	Oldest    *oldestRow  `json:"oldest"`    // due call; nil: none is due
}

// queueRow is a queue that is in force or that calls wait in.
type queueRow struct {
	Name       string   `json:"name" db:"name"`
	Configured bool     `json:"configured" db:"configured"`
	Limits     []string `json:"limits" db:"limits"`
	Waiting    int64    `json:"waiting" db:"waiting"` // due and scheduled
	Due        int64    `json:"due" db:"due"`
	Scheduled  int64    `json:"scheduled" db:"scheduled"`
	Dispatched int64    `json:"dispatched" db:"dispatched"` // handed over and not started
	Running    int64    `json:"running" db:"running"`
	Failed     int64    `json:"failed_24h" db:"failed"`
	Paused     *string  `json:"paused" db:"paused"` // why; nil: it is not
	// PausedUntil is nil also while it is paused until it is resumed.
	PausedUntil *time.Time `json:"paused_until" db:"paused_until"`
	PausedKeys  int64      `json:"paused_keys" db:"paused_keys"` // that are paused alone
	// Wanted is what each live process publishes, where they differ: then the queue has the limits of
	// all, and the newest says how it retries.
	Wanted      []dispatcher.Want `json:"wanted" db:"-"`
	On          string            `json:"on" db:"on_label"`
	MaxAttempts int               `json:"max_attempts" db:"max_attempts"`
	BackoffMin  time.Duration     `json:"backoff_min_ns" db:"backoff_min"`
	BackoffMax  time.Duration     `json:"backoff_max_ns" db:"backoff_max"`
	Timeout     time.Duration     `json:"timeout_ns" db:"timeout"`
	OnLost      string            `json:"on_lost" db:"on_lost"`
}

// holds is what is in force, in the words of what processes want.
func (q queueRow) holds() string {
	return dispatcher.QueueRule{
		Limits: q.Limits, On: q.On, MaxAttempts: q.MaxAttempts, BackoffMin: q.BackoffMin, BackoffMax: q.BackoffMax,
		Timeout: q.Timeout, OnLost: q.OnLost,
	}.String()
}

func readQueues(ctx context.Context, db ledger.DB, waiting []waitingRow) ([]queueRow, error) {
	var names []string
	var calls, due []int64
	for _, w := range waiting {
		names, calls, due = append(names, w.Queue), append(calls, w.Waiting), append(due, w.Due)
	}
	queues, err := collect[queueRow](ctx, db, "read queues", queuesSQL, names, calls, due)
	if err != nil {
		return nil, err
	}
	live, err := dispatcher.Live(ctx, db)
	if err != nil {
		return nil, err
	}
	_, wanted := dispatcher.Differences(live)
	for i := range queues {
		queues[i].Wanted = wanted[queues[i].Name]
		inUTC(queues[i].PausedUntil)
	}
	return queues, nil
}

type workerRow struct {
	ID        string    `json:"id" db:"id"`
	Pool      string    `json:"pool" db:"pool"`
	Tasks     []string  `json:"tasks" db:"tasks"`
	Labels    []string  `json:"labels" db:"labels"`
	Slots     int       `json:"slots" db:"slots"`
	Running   int64     `json:"running" db:"running"`
	Live      bool      `json:"live" db:"live"`
	StartedAt time.Time `json:"started_at" db:"started_at"`
	BeatAt    time.Time `json:"beat_at" db:"beat_at"`
}

type oldestRow struct {
	ID    int64     `json:"id" db:"id"`
	Queue string    `json:"queue" db:"queue"`
	DueAt time.Time `json:"due_at" db:"due_at"`
}

// Compiling a plan takes longer than it runs.
const beginSQL = `SELECT clock_timestamp() FROM set_config('jit', 'off', true)`

func readStatus(ctx context.Context, pool *pgxpool.Pool) (*status, error) {
	s := &status{}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, beginSQL).Scan(&s.At); err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		waiting, err := readWaiting(ctx, tx)
		if err != nil {
			return err
		}
		s.Unhandled = unhandledOf(waiting)
		if s.Queues, err = readQueues(ctx, tx, waiting); err != nil {
			return err
		}
		if s.Workers, err = collect[workerRow](ctx, tx, "read workers", workersSQL); err != nil {
			return err
		}
		if s.Limits, err = readLimits(ctx, tx); err != nil {
			return err
		}
		if s.Budgets, err = readBudgets(ctx, tx); err != nil {
			return err
		}
		s.Oldest, err = readOldest(ctx, tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	inUTC(&s.At)
	for i := range s.Workers {
		inUTC(&s.Workers[i].StartedAt, &s.Workers[i].BeatAt)
	}
	return s, nil
}

func readOldest(ctx context.Context, tx pgx.Tx) (*oldestRow, error) {
	oldest, err := collectOne[oldestRow](ctx, tx, "read the oldest call", oldestSQL)
	if oldest != nil {
		inUTC(&oldest.DueAt)
	}
	return oldest, err
}

// Failures are read through an index: what has ended well is not read, however much there is of it.
const queuesSQL = `
WITH waiting AS (
    SELECT name, sum(calls) AS waiting, sum(due) AS due
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS w (name, calls, due)
    GROUP BY 1
), open AS (
    SELECT queue AS name, count(*) FILTER (WHERE started_at IS NULL) AS dispatched,
        count(*) FILTER (WHERE started_at IS NOT NULL) AS running
    FROM call_open GROUP BY 1
), failed AS (
    SELECT coalesce(queue, 'default') AS name, count(*) AS failed
    FROM call_queue WHERE failed_at > now() - interval '24 hours' GROUP BY 1
)
SELECT name, q.name IS NOT NULL AS configured, coalesce(q.limits, '{}') AS limits,
    coalesce(w.waiting, 0) AS waiting, coalesce(w.due, 0) AS due, coalesce(w.waiting - w.due, 0) AS scheduled,
    coalesce(o.dispatched, 0) AS dispatched, coalesce(o.running, 0) AS running, coalesce(f.failed, 0) AS failed,
    p.reason AS paused, nullif(p.until, 'infinity') AS paused_until,
    coalesce(k.paused, 0) AS paused_keys,
    coalesce(q.on_label, '') AS on_label, coalesce(q.max_attempts, 0) AS max_attempts, coalesce(q.backoff_min, '0') AS backoff_min,
    coalesce(q.backoff_max, '0') AS backoff_max, coalesce(q.timeout, '0') AS timeout, coalesce(q.on_lost, '') AS on_lost
FROM call_queues q
FULL JOIN waiting w USING (name)
FULL JOIN open o USING (name)
FULL JOIN failed f USING (name)
LEFT JOIN (SELECT name, reason, until FROM call_pauses WHERE what = 'queue' AND key = '' AND until > clock_timestamp()) p USING (name)
LEFT JOIN (
    SELECT name, count(*) AS paused FROM call_pauses
    WHERE what = 'queue' AND key <> '' AND until > clock_timestamp() GROUP BY name
) k USING (name)
ORDER BY name`

const workersSQL = `
SELECT w.id, w.pool, w.tasks, w.labels, w.slots, w.started_at, w.beat_at,
    w.beat_at > clock_timestamp() - interval '6 seconds' AS live, count(o.call_id) AS running
FROM call_workers w
LEFT JOIN call_open o ON o.worker = w.id AND o.started_at IS NOT NULL
GROUP BY w.id
ORDER BY live DESC, w.id`

// The chunks are gone through from the oldest on, until one has a call that waits still.
const oldestSQL = `
SELECT f.id, c.queue, greatest(f.due_at, timestamptz '0001-01-01 00:00:00Z') AS due_at
FROM (
    SELECT queue, at, ids FROM call_waiting
    UNION ALL
    SELECT queue, at, ids FROM call_news WHERE at <= clock_timestamp()
    ORDER BY at
) c
CROSS JOIN LATERAL (
    SELECT q.id, coalesce(q.run_at, q.created_at) AS due_at
    FROM call_queue q
    WHERE q.id = ANY(c.ids) AND q.status IN ('new', 'error')
    ORDER BY 2, 1
    LIMIT 1
) f
LIMIT 1`

func (p *program) printStatus(s *status) error {
	if err := printTable(p.stdout, s.Queues, queueColumns()...); err != nil {
		return err
	}
	if len(s.Limits) > 0 {
		fmt.Fprintln(p.stdout)
		if err := printTable(p.stdout, s.Limits, limitColumns()[:6]...); err != nil {
			return err
		}
	}
	if len(s.Budgets) > 0 {
		fmt.Fprintln(p.stdout)
		if err := printTable(p.stdout, s.Budgets, budgetColumns()...); err != nil {
			return err
		}
	}
	p.printDifferences(s.Limits, s.Queues)
	for _, b := range s.Budgets {
		p.printDifference("budget "+b.Name, b.Wanted, b.holds())
	}
	fmt.Fprintln(p.stdout)
	if len(s.Workers) == 0 {
		fmt.Fprintln(p.stdout, "no workers: nothing is sent until one runs (callq serve, callq work)")
	} else if err := printTable(p.stdout, s.Workers,
		column[workerRow]{"WORKER", func(w workerRow) string { return w.ID }},
		column[workerRow]{"POOL", func(w workerRow) string { return w.Pool }},
		column[workerRow]{"TASKS", func(w workerRow) string { return short(strings.Join(w.Tasks, ",")) }},
		column[workerRow]{"RUNNING", func(w workerRow) string { return fmt.Sprintf("%d of %d", w.Running, w.Slots) }},
		column[workerRow]{"LAST BEAT", func(w workerRow) string {
			if !w.Live {
				return ago(s.At, w.BeatAt) + ": stopped or dead"
			}
			return ago(s.At, w.BeatAt)
		}},
	); err != nil {
		return err
	}
	for _, t := range s.Unhandled {
		fmt.Fprintln(p.stdout, t)
	}
	if s.Oldest != nil {
		fmt.Fprintf(p.stdout, "oldest due call: %d in %s, due %s\n", s.Oldest.ID, printable(short(s.Oldest.Queue)), ago(s.At, s.Oldest.DueAt))
	}
	return nil
}

// ago says how long before now something was.
func ago(now, at time.Time) string {
	return max(0, now.Sub(at)).Round(100*time.Millisecond).String() + " ago"
}
