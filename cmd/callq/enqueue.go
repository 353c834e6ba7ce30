package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/config"
)

// enqueueFlags are what enqueue is told.
type enqueueFlags struct {
	call             callqueue.Call
	priority         int
	at, data, from   string
	in, expiresIn    durationFlag
	isAt, isIn, isEx bool // given
}

// inserted is what enqueue prints of a call.
type inserted struct {
	ID        int64 `json:"id"`
	Duplicate bool  `json:"duplicate"` // an unfinished call has the unique key: ID is that call's
}

func (p *program) enqueueCommand() *cobra.Command {
	var f enqueueFlags
	cmd := &cobra.Command{
		Use: "enqueue [TASK]", Short: "Insert calls, and print their ids",
		Long: `Insert a call of TASK (default: http), or one for each line of a file, and print the ids.

Each line for --from is a JSON object with any of: queue, task, key, call_data, cost, priority,
run_at, expires_at, unique_key, max_attempts. What a line leaves out, the flags say. The lines are
written all or none: a line that is refused is named by its number, and nothing is inserted.

A call whose unique key an unfinished call of its queue has is not inserted: the id printed is that
call's, stderr says so, and the exit code is 0, so that a repeated command does no harm.`,
		Example: `  callq enqueue --queue payments --key acct_42 --data '{"method":"POST","url":"https://api.example.com/charges"}'
  callq enqueue send_email --in 10m --data @mail.json
  callq enqueue --from calls.jsonl`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.call.Task = args[0]
			}
			given := cmd.Flags().Changed
			f.isAt, f.isIn, f.isEx = given("at"), given("in"), given("expires-in")
			if given("priority") {
				f.call.Priority = &f.priority
			}
			if err := f.check(given); err != nil {
				return err
			}
			if f.from != "" {
				return p.enqueueFile(cmd.Context(), f)
			}
			return p.enqueueOne(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.call.Queue, "queue", "", "queue whose limits hold (default: default)")
	flags.StringVar(&f.call.Key, "key", "", "whose call it is")
	flags.Int64Var(&f.call.Cost, "cost", 1, "units that it takes of a limit that counts cost")
	flags.IntVar(&f.priority, "priority", 5, "0 (first) to 9 (last)")
	flags.StringVar(&f.at, "at", "", "earliest time, such as 2026-11-21T09:00:00Z (default: now)")
	flags.Var(&f.in, "in", "earliest time from now on, such as 10m or 1d")
	flags.Var(&f.expiresIn, "expires-in", "give up, unsent, after this long from now on")
	flags.StringVar(&f.call.UniqueKey, "unique", "", "key that no other unfinished call of the queue has")
	flags.IntVar(&f.call.MaxAttempts, "max-attempts", 0, "failures before it is given up (default: what the queue says)")
	flags.StringVar(&f.data, "data", "", "call_data: JSON, - for stdin, @FILE for a file (default: {})")
	flags.StringVar(&f.from, "from", "", "file with a JSON object for each call, - for stdin")
	return cmd
}

// check refuses what contradicts itself, and what would silently mean a default.
func (f *enqueueFlags) check(given func(string) bool) error {
	switch {
	case f.isAt && f.isIn:
		return usagef("--at and --in both say when: give one of them")
	case given("from") && f.from == "":
		return usagef("--from needs a file, or - for stdin")
	case f.from != "" && given("unique"):
		return usagef("--unique would be the same for every line: give unique_key in the lines of --from")
	case f.from == "-" && f.data == "-":
		return usagef("--from and --data cannot both read stdin")
	case given("cost") && f.call.Cost < 1:
		return usagef("--cost is %d, less than 1", f.call.Cost)
	case given("max-attempts") && f.call.MaxAttempts < 1:
		return usagef("--max-attempts is %d, less than 1", f.call.MaxAttempts)
	case f.isAt:
		at, err := time.Parse(time.RFC3339, f.at)
		if err != nil {
			return usagef("--at %q is not a time: write it as 2026-11-21T09:00:00Z or 2026-11-21T10:00:00+01:00", f.at)
		}
		f.call.RunAt = at
	}
	return nil
}

// readData resolves --data, and leaves its JSON to the client.
func (f *enqueueFlags) readData(stdin io.Reader, most int64) error {
	name, isFile := strings.CutPrefix(f.data, "@")
	var from io.Reader
	switch {
	case f.data == "-":
		name, from = "stdin", stdin
	case isFile:
		file, err := os.Open(name)
		if err != nil {
			return usagef("--data: %w", err)
		}
		defer file.Close()
		from = file
	case f.data != "":
		f.call.Data = json.RawMessage(f.data)
		return nil
	default:
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(from, 2*most+1)) // white space may be a part of it
	if err != nil {
		return usagef("--data: read %s: %w", name, err)
	}
	f.call.Data = json.RawMessage(data)
	return nil
}

// resolveTimes turns times from now on into instants of Postgres's clock.
func (f *enqueueFlags) resolveTimes(ctx context.Context, pool *pgxpool.Pool) error {
	if !f.isIn && !f.isEx {
		return nil
	}
	var now time.Time
	if err := pool.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return fmt.Errorf("read Postgres's clock: %w", err)
	}
	if f.isIn {
		f.call.RunAt = now.Add(time.Duration(f.in))
	}
	if f.isEx {
		f.call.ExpiresAt = now.Add(time.Duration(f.expiresIn))
	}
	return nil
}

const nowSQL = `SELECT clock_timestamp()`

func (p *program) enqueueOne(ctx context.Context, f enqueueFlags) error {
	return p.ask(ctx, func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
		client, err := f.client(ctx, p.input, cfg, pool)
		if err != nil {
			return err
		}
		id, err := client.Insert(ctx, f.call)
		duplicate := errors.Is(err, callqueue.ErrDuplicate)
		if err != nil && !duplicate {
			return refused(err, flagOf)
		}
		if duplicate {
			fmt.Fprintf(p.stderr, "callq: not inserted: unfinished call %d of the queue has the unique key %q\n", id, f.call.UniqueKey)
		}
		row := inserted{id, duplicate}
		if p.output == "table" {
			fmt.Fprintln(p.stdout, row.ID)
		} else if err := p.printJSON(row); err != nil {
			return err
		}
		p.warnOfQueues(ctx, pool, map[string]bool{f.call.Queue: true})
		return nil
	})
}

// client resolves what the flags leave to be read, and makes the client.
func (f *enqueueFlags) client(ctx context.Context, stdin io.Reader, cfg *config.Config, pool *pgxpool.Pool) (*callqueue.Client, error) {
	if err := f.readData(stdin, int64(cfg.Calls.MaxData)); err != nil {
		return nil, err
	}
	if err := f.resolveTimes(ctx, pool); err != nil {
		return nil, err
	}
	return callqueue.New(pool, callqueue.MaxData(int(cfg.Calls.MaxData)))
}

// refused names what is wrong with a call as its writer knows it: exit code 2, for it is what was
// given that is wrong.
func refused(err error, name func(field string) string) error {
	invalid, ok := errors.AsType[*callqueue.InvalidCallError](err)
	if !ok {
		return err
	}
	return usagef("%s %s", name(invalid.Field), invalid.Reason)
}

func flagOf(field string) string {
	switch field {
	case "Task":
		return "TASK"
	case "RunAt":
		return "the time to run"
	case "ExpiresAt":
		return "--expires-in"
	case "UniqueKey":
		return "--unique"
	case "MaxAttempts":
		return "--max-attempts"
	case "":
		return "the call"
	}
	return "--" + strings.ToLower(field)
}

// warnOfQueues says which calls will wait because no configuration in force has their queue. It is
// no error if it cannot: the calls are in, and a producer's role may not be allowed to look.
func (p *program) warnOfQueues(ctx context.Context, pool *pgxpool.Pool, queues map[string]bool) {
	names := slices.Sorted(maps.Keys(queues))
	for i, name := range names {
		if name == "" {
			names[i] = "default"
		}
	}
	rows, err := pool.Query(ctx, unknownQueuesSQL, names)
	if err != nil {
		return
	}
	unknown, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	for _, name := range unknown {
		fmt.Fprintf(p.stderr, "callq: warning: no dispatcher has published a queue %q: its calls wait until one does\n", name)
	}
}

const unknownQueuesSQL = `
SELECT name FROM unnest($1::text[]) AS name
WHERE NOT EXISTS (SELECT FROM call_queues q WHERE q.name = name.name)
ORDER BY name`
