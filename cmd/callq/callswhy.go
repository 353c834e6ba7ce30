package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/cmd/callq/config"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
)

func (p *program) callsWhyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "why ID...", Short: "Say what calls wait for, or what became of them",
		Long: `Say what calls wait for, all of it at once, or what became of them. Limits are read without their locks:
nothing is decided by it. -o json is an object for one ID and an array for several; -o jsonl an object per
line. An ID that there is not is exit code 4, after the others.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := callIDs(args)
			if err != nil {
				return err
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				return p.explainCalls(ctx, pool, ids)
			})
		},
	}
}

// callWhy is a call with why it stands where it does.
type callWhy struct {
	ID      int64            `json:"id"`
	Queue   string           `json:"queue"`
	Task    string           `json:"task"`
	Key     string           `json:"key"`
	Status  callqueue.Status `json:"status"`
	Running bool             `json:"running"`
	At      time.Time        `json:"at"` // Postgres's clock
	Reasons []reason         `json:"reasons"`
}

func (p *program) explainCalls(ctx context.Context, pool *pgxpool.Pool, ids []int64) error {
	client, err := callqueue.New(pool)
	if err != nil {
		return err
	}
	calls, missing, err := eachCall(ids, func(id int64) (callWhy, error) { return explain(ctx, client, pool, id) })
	if err != nil {
		return err
	}
	if err := printCalls(p, calls, len(ids) == 1, func(e callWhy) error {
		text := fmt.Sprintf("call %d, %s: queue %s, task %s, key %s",
			e.ID, statusText(e.Status, e.Running), short(e.Queue), short(e.Task), short(dash(e.Key)))
		fmt.Fprintln(p.stdout, printable(text))
		for _, r := range e.Reasons {
			fmt.Fprintln(p.stdout, "  "+printable(r.Text))
		}
		return nil
	}); err != nil {
		return err
	}
	return missing
}

func explain(ctx context.Context, client *callqueue.Client, pool *pgxpool.Pool, id int64) (callWhy, error) {
	call, err := client.Get(ctx, id)
	if err != nil {
		return callWhy{}, err
	}
	c := circumstances{call: call}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error { return c.read(ctx, tx) })
	if err != nil {
		return callWhy{}, err
	}
	inUTC(&c.now)
	return callWhy{call.ID, call.Queue, call.Task, call.Key, call.Status, call.Running, c.now, c.reasons()}, nil
}

// read reads the circumstances of the call, by the primary keys of what it depends on.
func (c *circumstances) read(ctx context.Context, db pgx.Tx) error {
	if err := db.QueryRow(ctx, nowSQL).Scan(&c.now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	var err error
	if c.open, err = collectOne[openRow](ctx, db, "read the open attempt", openSQL, c.call.ID); err != nil {
		return err
	}
	if c.open != nil {
		inUTC(&c.open.HandedAt, &c.open.StartBy, c.open.StartedAt, c.open.Deadline)
	}
	if c.queue, err = collectOne[ruleRow](ctx, db, "read the queue", ruleSQL, c.call.Queue); err != nil {
		return err
	}
	label, limits := "", []string{}
	if c.queue != nil {
		label, limits = c.queue.On, append(limits, c.queue.Limits...)
	}
	c.pauses, err = collect[callPause](ctx, db, "read pauses", callPausesSQL, c.call.Key, c.call.Queue, limits)
	if err != nil {
		return err
	}
	for i := range c.pauses {
		inUTC(c.pauses[i].Until)
	}
	if c.limits, err = readLimitsFor(ctx, db, limits, &c.call.Key); err != nil {
		return err
	}
	workers, err := collectOne[workforce](ctx, db, "read workers", workforceSQL, c.call.Task, label)
	if err != nil {
		return err
	}
	c.workers = *workers
	live, err := dispatcher.Live(ctx, db)
	c.dispatchers = len(live)
	return err
}

// collectOne runs a query of one row or none; nil is none.
func collectOne[T any](ctx context.Context, db ledger.DB, what, sql string, args ...any) (*T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	one, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[T])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return one, nil
}

const openSQL = `
SELECT attempt, handed_at, start_by, started_at, deadline, pool, worker,
    (SELECT count(*) FROM call_workers w
     WHERE w.pool = o.pool AND w.beat_at > clock_timestamp() - interval '6 seconds') AS takers
FROM call_open o
WHERE call_id = $1`

const ruleSQL = `SELECT limits, on_label, hours FROM call_queues WHERE name = $1`

// The pause of a whole limit is part of the limit's state.
const callPausesSQL = `
SELECT what, name, key, nullif(until, 'infinity') AS until, reason, by
FROM call_pauses
WHERE until > clock_timestamp()
  AND (what = 'queue' AND name = $2 AND key IN ('', $1) OR what = 'limit' AND name = ANY($3) AND key = $1 AND key <> '')
ORDER BY what DESC, name, key`

const workforceSQL = `
WITH handle AS (
    SELECT id, slots, $2::text = '' OR $2 = ANY(labels) AS fits
    FROM call_workers
    WHERE beat_at > clock_timestamp() - interval '6 seconds' AND $1::text = ANY(tasks)
)
SELECT count(*) AS handle, count(*) FILTER (WHERE fits) AS fit, coalesce(sum(slots) FILTER (WHERE fits), 0) AS slots,
    (SELECT count(*) FROM call_open o JOIN handle h ON h.id = o.worker
     WHERE h.fits AND o.started_at IS NOT NULL) AS running
FROM handle`
