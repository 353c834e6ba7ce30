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
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
)

// enqueueFlags are what enqueue is told.
type enqueueFlags struct {
	call          callqueue.Call
	priority      int
	data, from    string
	in, expiresIn time.Duration
	given         func(flag string) bool
}

// inserted is what enqueue prints of a call.
type inserted struct {
	ID        int64 `json:"id"`
	Duplicate bool  `json:"duplicate"` // an unfinished call has the unique key: ID is that call's
}

func enqueueCommand(a *app) *cobra.Command {
	var f enqueueFlags
	cmd := &cobra.Command{
		Use: "enqueue [TASK]", Short: "Insert calls, and print their ids",
		Long: `Insert a call of TASK (default: http), or one for each line of a file, and print the ids.

Each line for --from is a JSON object with any of: queue, task, key, call_data, cost, priority,
run_at, expires_at, unique_key, max_attempts. Flags give what a line leaves out. Either all lines are
inserted or none: if one is refused, its number is printed and nothing is inserted.

If an unfinished call of the queue has the same unique key, the call is not inserted. callq prints that
call's id, says so on stderr and exits with 0, so that repeating a command does no harm.`,
		Example: `  callq enqueue --queue payments --key acct_42 --data '{"method":"POST","url":"https://api.example.com/charges"}'
  callq enqueue send_email --in 10m --data @mail.json
  callq enqueue --from calls.jsonl`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.call.Task = args[0]
			}
			f.given = cmd.Flags().Changed
			if err := f.check(); err != nil {
				return err
			}
			if f.from != "" {
				return enqueueFile(cmd, a, &f)
			}
			return a.query(func(ctx context.Context, db *database, _ []string) error {
				return enqueueOne(ctx, db, &f)
			})(cmd, args)
		},
	}
	all := cmd.Flags()
	all.StringVar(&f.call.Queue, "queue", "", "queue whose limits hold (default: default)")
	all.StringVar(&f.call.Key, "key", "", "whose call it is")
	all.Int64Var(&f.call.Cost, "cost", 1, "units that it takes of a limit that counts cost")
	all.IntVar(&f.priority, "priority", 5, "0 (first) to 9 (last)")
	timeVar(all, &f.call.RunAt, "at", "earliest time, such as 2026-11-21T09:00:00Z (default: now)")
	durationVar(all, &f.in, "in", "earliest time from now on, such as 10m or 1d")
	durationVar(all, &f.expiresIn, "expires-in", "give up, unsent, after this long from now on")
	all.StringVar(&f.call.UniqueKey, "unique", "", "key that no other unfinished call of the queue has")
	all.IntVar(&f.call.MaxAttempts, "max-attempts", 0, "failures before it is given up (default: what the queue says)")
	all.StringVar(&f.data, "data", "", "call_data: JSON, - for stdin, @FILE for a file (default: {})")
	all.StringVar(&f.from, "from", "", "file with a JSON object for each call, - for stdin")
	return cmd
}

// check refuses what contradicts itself, and what would silently mean a default.
func (f *enqueueFlags) check() error {
	switch {
	case f.given("at") && f.given("in"):
		return usagef("--at and --in both say when: give one of them")
	case f.given("from") && f.from == "":
		return usagef("--from needs a file, or - for stdin")
	case f.from != "" && f.given("unique"):
		return usagef("--unique would be the same for every line: give unique_key in the lines of --from")
	case f.from == "-" && f.data == "-":
		return usagef("--from and --data cannot both read stdin")
	case f.given("cost") && f.call.Cost < 1:
		return usagef("--cost is %d, less than 1", f.call.Cost)
	case f.given("max-attempts") && f.call.MaxAttempts < 1:
		return usagef("--max-attempts is %d, less than 1", f.call.MaxAttempts)
	}
	if f.given("priority") {
		f.call.Priority = &f.priority
	}
	return nil
}

// open opens the file that a flag names, or stdin.
func (a *app) open(ctx context.Context, flag, name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.input(ctx)), nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, usagef("--%s: %w", flag, err)
	}
	return file, nil
}

// readData resolves --data, and leaves its JSON to the client.
func (f *enqueueFlags) readData(ctx context.Context, db *database) error {
	name, isFile := strings.CutPrefix(f.data, "@")
	if !isFile && f.data != "-" {
		if f.data != "" {
			f.call.Data = json.RawMessage(f.data)
		}
		return nil
	}
	from, err := db.open(ctx, "data", name)
	if err != nil {
		return err
	}
	defer from.Close()
	data, err := io.ReadAll(io.LimitReader(from, 2*int64(db.cfg.Calls.MaxData)+1)) // white space may be a part of it
	if err != nil {
		return usagef("--data: read %s: %w", name, err)
	}
	f.call.Data = json.RawMessage(data)
	return nil
}

// resolve reads what the flags leave to be read: the data, and from Postgres's clock the time that
// --in and --expires-in start from.
func (f *enqueueFlags) resolve(ctx context.Context, db *database) error {
	if err := f.readData(ctx, db); err != nil || !f.given("in") && !f.given("expires-in") {
		return err
	}
	var now time.Time
	if err := db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return fmt.Errorf("read Postgres's clock: %w", err)
	}
	if f.given("in") {
		f.call.RunAt = now.Add(f.in)
	}
	if f.given("expires-in") {
		f.call.ExpiresAt = now.Add(f.expiresIn)
	}
	return nil
}

func enqueueOne(ctx context.Context, db *database, f *enqueueFlags) error {
	if err := f.resolve(ctx, db); err != nil {
		return err
	}
	id, err := db.calls.Insert(ctx, f.call)
	duplicate := errors.Is(err, callqueue.ErrDuplicate)
	if err != nil && !duplicate {
		return refused(err, flags)
	}
	if duplicate {
		fmt.Fprintf(db.stderr, "callq: not inserted: unfinished call %d of the queue has the unique key %q\n", id, f.call.UniqueKey)
	}
	if err := db.show(inserted{id, duplicate}, func(w io.Writer) { fmt.Fprintln(w, id) }); err != nil {
		return err
	}
	warnOfQueues(ctx, db, map[string]bool{f.call.Queue: true})
	return nil
}

// refused names what is wrong with a call in its writer's words: flags, or a line's columns. The exit
// code is 2: what was given is wrong.
func refused(err error, words int) error {
	invalid, ok := errors.AsType[*callqueue.InvalidCallError](err)
	if !ok {
		return err
	}
	names := map[string][2]string{
		"": {"the call", "the call"}, "Task": {"TASK", "task"}, "Data": {"--data", "call_data"}, "RunAt": {"the time to run", "run_at"},
		"ExpiresAt": {"--expires-in", "expires_at"}, "UniqueKey": {"--unique", "unique_key"}, "MaxAttempts": {"--max-attempts", "max_attempts"},
	}
	name, ok := names[invalid.Field]
	if !ok {
		name[columns] = strings.ToLower(invalid.Field)
		name[flags] = "--" + name[columns]
	}
	return usagef("%s %s", name[words], invalid.Reason)
}

// Whose words refused uses.
const (
	flags = iota
	columns
)

// warnOfQueues says which calls will wait because no configuration in force has their queue. If it
// cannot, that is no error: the calls are in, and a producer's role may not be allowed to look.
func warnOfQueues(ctx context.Context, db *database, queues map[string]bool) {
	if queues[""] {
		delete(queues, "")
		queues["default"] = true
	}
	rows, _ := db.Query(ctx, unknownQueuesSQL, slices.Sorted(maps.Keys(queues)))
	unknown, _ := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range unknown {
		fmt.Fprintf(db.stderr, "callq: warning: no dispatcher has published a queue %q: its calls wait until one does\n", name)
	}
}

const unknownQueuesSQL = `
SELECT name FROM unnest($1::text[]) AS name
WHERE NOT EXISTS (SELECT FROM call_queues q WHERE q.name = name.name)
ORDER BY name`
