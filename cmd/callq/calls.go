package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/cmd/callq/config"
)

func (p *program) callsCommand() *cobra.Command {
	return group("calls", "List calls, show or cancel them", p.callsListCommand(), p.callsGetCommand(), p.callsCancelCommand())
}

// callFilter says which calls to list.
type callFilter struct {
	status           []string
	queue, key, task string
	limit            int
	before           int64
	isKey            bool // an empty key is one too
}

func (p *program) callsListCommand() *cobra.Command {
	var f callFilter
	cmd := &cobra.Command{
		Use: "list", Short: "List calls, newest first",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.isKey = cmd.Flags().Changed("key")
			if err := f.check(cmd.Flags().Changed("before")); err != nil {
				return err
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				return p.listCalls(ctx, pool, f)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.status, "status", nil, "only these: "+strings.Join(statuses(), ","))
	flags.StringVar(&f.queue, "queue", "", "only of this queue")
	flags.StringVar(&f.key, "key", "", "only with this key")
	flags.StringVar(&f.task, "task", "", "only of this task")
	flags.IntVar(&f.limit, "limit", 50, "how many at most")
	flags.Int64Var(&f.before, "before", 0, "only ids below this one: the next page")
	return cmd
}

func statuses() []string {
	return []string{
		string(callqueue.StatusNew), string(callqueue.StatusDispatched), string(callqueue.StatusDone),
		string(callqueue.StatusError), string(callqueue.StatusFailed), string(callqueue.StatusCancelled),
	}
}

func (f callFilter) check(isBefore bool) error {
	for _, s := range f.status {
		if !slices.Contains(statuses(), s) {
			return usagef("--status %q is not a status: %s", s, strings.Join(statuses(), ", "))
		}
	}
	if f.limit < 1 || f.limit > 10_000 {
		return usagef("--limit is %d, outside 1 to 10000", f.limit)
	}
	if isBefore && f.before < 1 {
		return usagef("--before is %d, and ids begin with 1", f.before)
	}
	return nil
}

// listed is a call in a list: its Record without what may be large.
type listed struct {
	ID           int64            `json:"id" db:"id"`
	Queue        string           `json:"queue" db:"queue"`
	Task         string           `json:"task" db:"task"`
	Key          string           `json:"key" db:"key"`
	Status       callqueue.Status `json:"status" db:"status"`
	Running      bool             `json:"running" db:"running"`
	Attempts     int              `json:"attempts" db:"attempts"`
	FailedCount  int              `json:"failed_count" db:"failed_count"`
	ErrorMessage *string          `json:"error_message" db:"error_message"`
	RunAt        time.Time        `json:"run_at" db:"run_at"`
	CreatedAt    time.Time        `json:"created_at" db:"created_at"`
	DispatchedAt *time.Time       `json:"dispatched_at" db:"dispatched_at"`
	FinishedAt   *time.Time       `json:"finished_at" db:"finished_at"`
}

func (p *program) listCalls(ctx context.Context, pool *pgxpool.Pool, f callFilter) error {
	calls, err := collect[listed](ctx, pool, "list calls", listSQL+f.whereSQL(), pgx.NamedArgs{
		"status": f.status, "queue": f.queue, "key": f.key, "task": f.task, "before": f.before, "limit": f.limit,
	})
	if err != nil {
		return err
	}
	for i := range calls {
		c := &calls[i]
		inUTC(&c.RunAt, &c.CreatedAt, c.DispatchedAt, c.FinishedAt)
	}
	if len(calls) == f.limit {
		fmt.Fprintf(p.stderr, "the next page: --before %d\n", calls[len(calls)-1].ID)
	}
	return printRows(p, calls,
		column[listed]{"ID", func(c listed) string { return strconv.FormatInt(c.ID, 10) }},
		column[listed]{"QUEUE", func(c listed) string { return short(c.Queue) }},
		column[listed]{"TASK", func(c listed) string { return short(c.Task) }},
		column[listed]{"KEY", func(c listed) string { return short(dash(c.Key)) }},
		column[listed]{"STATUS", func(c listed) string { return statusText(c.Status, c.Running) }},
		column[listed]{"ATTEMPTS", func(c listed) string { return strconv.Itoa(c.Attempts) }},
		column[listed]{"RUN AT", func(c listed) string { return instant(&c.RunAt) }},
		column[listed]{"FINISHED AT", func(c listed) string { return instant(c.FinishedAt) }},
		column[listed]{"ERROR", func(c listed) string { return short(text(c.ErrorMessage)) }},
	)
}

func statusText(s callqueue.Status, running bool) string {
	if running {
		return string(s) + ", running"
	}
	return string(s)
}

func inUTC(times ...*time.Time) {
	for _, at := range times {
		if at != nil {
			*at = at.UTC()
		}
	}
}

// Walks the primary key downwards. Where a status waits or has failed, the index of those may be
// better. Times are brought within years that JSON can say, as callqueue.Record's are.
const listSQL = `
WITH years (first, last) AS (
    VALUES (timestamptz '0001-01-01 00:00:00Z', timestamptz '9999-12-31 23:59:59.999999Z')
)
SELECT id, coalesce(queue, 'default') AS queue, coalesce(task, 'http') AS task, coalesce(key, '') AS key, status,
    EXISTS (SELECT FROM call_open o WHERE o.call_id = c.id AND o.started_at IS NOT NULL) AS running,
    attempts, failed_count, error_message,
    least(greatest(coalesce(run_at, created_at), first), last) AS run_at,
    least(greatest(created_at, first), last) AS created_at,
    CASE WHEN dispatched_at IS NOT NULL THEN least(greatest(dispatched_at, first), last) END AS dispatched_at,
    CASE WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, first), last) END AS finished_at
FROM call_queue c, years
WHERE true`

func (f callFilter) whereSQL() string {
	var b strings.Builder
	add := func(given bool, condition string) {
		if given {
			b.WriteString("\n  AND " + condition)
		}
	}
	add(len(f.status) > 0, "status = ANY(@status::text[])")
	add(slices.Equal(f.status, []string{"failed"}), "failed_at IS NOT NULL")
	add(len(f.status) > 0 && !slices.ContainsFunc(f.status, ended), "status IN ('new', 'error')")
	add(f.queue != "", "coalesce(queue, 'default') = @queue::text")
	add(f.isKey, "coalesce(key, '') = @key::text")
	add(f.task != "", "coalesce(task, 'http') = @task::text")
	add(f.before > 0, "id < @before::bigint")
	return b.String() + "\nORDER BY id DESC\nLIMIT @limit::bigint"
}

func ended(status string) bool { return status != "new" && status != "error" }

func (p *program) callsGetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get ID...", Short: "Show calls with every attempt",
		Long: "Show calls with every attempt. -o json is an object for one ID and an array for several; -o jsonl\n" +
			"an object per line. An ID that there is not is exit code 4, after the others.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := callIDs(args)
			if err != nil {
				return err
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				return p.getCalls(ctx, pool, ids)
			})
		},
	}
}

// shown is a call with its attempts.
type shown struct {
	*callqueue.Record
	Ledger []attempt `json:"ledger"`
}

// attempt is a row of the ledger, or an open attempt: then its outcome is empty.
type attempt struct {
	Attempt    int             `json:"attempt" db:"attempt"`
	Outcome    string          `json:"outcome" db:"outcome"`
	ClaimedAt  time.Time       `json:"claimed_at" db:"claimed_at"`
	StartedAt  *time.Time      `json:"started_at" db:"started_at"`
	ArrivedBy  *time.Time      `json:"arrived_by" db:"arrived_by"`
	FinishedAt *time.Time      `json:"finished_at" db:"finished_at"`
	Cost       int64           `json:"cost" db:"cost"`
	Worker     *string         `json:"worker" db:"worker"`
	Error      *string         `json:"error" db:"error"`
	Charged    json.RawMessage `json:"charged" db:"charged"`
}

func (p *program) getCalls(ctx context.Context, pool *pgxpool.Pool, ids []int64) error {
	client, err := callqueue.New(pool)
	if err != nil {
		return err
	}
	var calls []shown
	var missing []int64
	for _, id := range ids {
		record, err := client.Get(ctx, id)
		if errors.Is(err, callqueue.ErrNotFound) {
			missing = append(missing, id)
			continue
		}
		if err != nil {
			return err
		}
		ledger, err := attemptsOf(ctx, pool, id)
		if err != nil {
			return err
		}
		calls = append(calls, shown{record, ledger})
	}
	if err := p.printCalls(calls, len(ids) == 1); err != nil {
		return err
	}
	if len(missing) > 0 {
		return notFound(missing)
	}
	return nil
}

func attemptsOf(ctx context.Context, pool *pgxpool.Pool, id int64) ([]attempt, error) {
	attempts, err := collect[attempt](ctx, pool, "get attempts", attemptsSQL, id)
	if err != nil {
		return nil, err
	}
	for i := range attempts {
		a := &attempts[i]
		inUTC(&a.ClaimedAt, a.StartedAt, a.ArrivedBy, a.FinishedAt)
	}
	return attempts, nil
}

const attemptsSQL = `
SELECT attempt, outcome, claimed_at, started_at, arrived_by, finished_at, cost, worker, error, charged
FROM call_attempts WHERE call_id = $1
UNION ALL
SELECT attempt, '', claimed_at, started_at, NULL, NULL, cost, worker, NULL, '[]'
FROM call_open WHERE call_id = $1
ORDER BY attempt`

func (p *program) printCalls(calls []shown, one bool) error {
	switch {
	case p.output == "json" && one && len(calls) == 1:
		return p.printJSON(calls[0])
	case p.output == "json" && one:
		return nil
	case p.output != "table":
		return printRows(p, calls)
	}
	for i, c := range calls {
		if i > 0 {
			fmt.Fprintln(p.stdout)
		}
		if err := p.printCall(c); err != nil {
			return err
		}
	}
	return nil
}

func (p *program) printCall(c shown) error {
	for _, field := range [][2]string{
		{"id", strconv.FormatInt(c.ID, 10)},
		{"queue", c.Queue},
		{"task", c.Task},
		{"key", dash(c.Key)},
		{"status", statusText(c.Status, c.Running)},
		{"attempts", strconv.Itoa(c.Attempts)},
		{"failed_count", strconv.Itoa(c.FailedCount)},
		{"max_attempts", text(c.MaxAttempts)},
		{"error_message", text(c.ErrorMessage)},
		{"priority", strconv.Itoa(c.Priority)},
		{"cost", strconv.FormatInt(c.Cost, 10)},
		{"unique_key", text(c.UniqueKey)},
		{"created_at", instant(&c.CreatedAt)},
		{"run_at", instant(&c.RunAt)},
		{"expires_at", instant(c.ExpiresAt)},
		{"dispatched_at", instant(c.DispatchedAt)},
		{"finished_at", instant(c.FinishedAt)},
		{"call_data", string(c.Data)},
		{"result", dash(string(c.Result))},
	} {
		fmt.Fprintf(p.stdout, "%-14s %s\n", field[0], printable(field[1]))
	}
	if len(c.Ledger) == 0 {
		return nil
	}
	fmt.Fprintln(p.stdout)
	return printTable(p.stdout, c.Ledger,
		column[attempt]{"ATTEMPT", func(a attempt) string { return strconv.Itoa(a.Attempt) }},
		column[attempt]{"OUTCOME", func(a attempt) string { return a.state() }},
		column[attempt]{"CLAIMED AT", func(a attempt) string { return instant(&a.ClaimedAt) }},
		column[attempt]{"STARTED AT", func(a attempt) string { return instant(a.StartedAt) }},
		column[attempt]{"FINISHED AT", func(a attempt) string { return instant(a.FinishedAt) }},
		column[attempt]{"WORKER", func(a attempt) string { return text(a.Worker) }},
		column[attempt]{"ERROR", func(a attempt) string { return short(text(a.Error)) }},
	)
}

func (a attempt) state() string {
	switch {
	case a.Outcome != "":
		return a.Outcome
	case a.StartedAt != nil:
		return "(running)"
	}
	return "(waits for a worker)"
}
