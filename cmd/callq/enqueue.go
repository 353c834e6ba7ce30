package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

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
	all.TimeVar(&f.call.RunAt, "at", f.call.RunAt, []string{time.RFC3339}, "earliest time, such as 2026-11-21T09:00:00Z (default: now)")
	durationVar(all, &f.in, 0, "in", "earliest time from now on, such as 10m or 1d")
	durationVar(all, &f.expiresIn, 0, "expires-in", "give up, unsent, after this long from now on")
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
		return refused(err)
	}
	if duplicate {
		fmt.Fprintf(db.stderr, "callq: not inserted: unfinished call %d of the queue has the unique key %q\n", id, f.call.UniqueKey)
	}
	return db.show(inserted{id, duplicate}, func(w io.Writer) { fmt.Fprintln(w, id) })
}

// refused is an error of usage where a call was refused for what it holds.
func refused(err error) error {
	if invalid, ok := errors.AsType[*callqueue.InvalidCallError](err); ok {
		return usagef("%s %s", cmp.Or(invalid.Field, "the call"), invalid.Reason)
	}
	return err
}

// line is a call with call_queue's names, for JSON. Its fields are those of callqueue.Call.
type line struct {
	Queue       string    `json:"queue"`
	Task        string    `json:"task"`
	Key         string    `json:"key"`
	Data        any       `json:"call_data"`
	Cost        int64     `json:"cost"`
	Priority    *int      `json:"priority"`
	RunAt       time.Time `json:"run_at"`
	ExpiresAt   time.Time `json:"expires_at"`
	UniqueKey   string    `json:"unique_key"`
	MaxAttempts int       `json:"max_attempts"`
}

// filing is one run of enqueue --from: a transaction that takes all lines or none.
type filing struct {
	client *callqueue.Client
	tx     pgx.Tx
	base   callqueue.Call // what the flags say

	results    []inserted
	duplicates int // of them

	calls []callqueue.Call // not yet written
	lines []int            // their numbers
	bytes int              // and their size
}

// enqueueFile inserts the calls of a file. --timeout bounds the wait for Postgres alone.
func enqueueFile(cmd *cobra.Command, a *app, f *enqueueFlags) error {
	in, err := a.open(cmd.Context(), "from", f.from)
	if err != nil {
		return err
	}
	defer in.Close()
	return a.connected(commandSettings(), func(ctx context.Context, db *database, _ []string) error {
		if err := f.resolve(ctx, db); err != nil {
			return err
		}
		all := filing{client: db.calls, base: f.call}
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			all.tx = tx
			return all.read(ctx, in, int(db.cfg.Calls.MaxData))
		})
		if err != nil {
			return fmt.Errorf("nothing was inserted: %w", err)
		}
		if err := showRows(a, all.results, func(w io.Writer) {
			for _, row := range all.results {
				fmt.Fprintln(w, row.ID)
			}
		}); err != nil {
			return err
		}
		fmt.Fprintf(a.stderr, "%d calls inserted", len(all.results)-all.duplicates)
		if all.duplicates > 0 {
			fmt.Fprintf(a.stderr, ", %d not: unfinished calls have their unique keys, whose ids are given instead", all.duplicates)
		}
		fmt.Fprintln(a.stderr)
		return nil
	})(cmd, nil)
}

// read takes the lines in, some at a time. It skips blank lines.
func (f *filing) read(ctx context.Context, in io.Reader, maxData int) error {
	const linesAtOnce, bytesAtOnce = 1000, 16 << 20
	scanner := bufio.NewScanner(in)
	longest := 2*maxData + 1<<16 // white space may be a part of it
	scanner.Buffer(nil, longest)
	number := 1
	for ; scanner.Scan() && scanner.Err() == nil; number++ { // before an error the scanner gives what it has of the line
		text := bytes.TrimSpace(scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		call, err := f.parse(text)
		if err != nil {
			return usagef("line %d: %w", number, err)
		}
		f.calls, f.lines, f.bytes = append(f.calls, call), append(f.lines, number), f.bytes+len(text)
		if len(f.calls) == linesAtOnce || f.bytes >= bytesAtOnce {
			if err := f.write(ctx); err != nil {
				return err
			}
		}
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return usagef("line %d: longer than %d bytes", number, longest)
	case err != nil:
		return usagef("line %d: %w", number, err)
	}
	return f.write(ctx)
}

// parse reads a line over what the flags say. Null means the default, as in call_queue.
func (f *filing) parse(text []byte) (callqueue.Call, error) {
	var none callqueue.Call
	switch {
	case !utf8.Valid(text):
		return none, errors.New("not valid UTF-8")
	case text[0] != '{':
		return none, errors.New("not a JSON object")
	}
	var data json.RawMessage
	l := line(f.base)
	if f.base.Priority != nil {
		l.Priority = new(*f.base.Priority)
	}
	const unset = -1 << 31
	l.Data, l.MaxAttempts = &data, unset
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return none, fmt.Errorf("not a call: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return none, errors.New("something follows the JSON object")
	}
	if l.Priority == nil {
		l.Priority = f.base.Priority
	}
	l.Data = f.base.Data
	if len(data) > 0 && string(data) != "null" {
		l.Data = data
	}
	switch { // the client takes 0 for the default
	case l.Cost < 1:
		return none, fmt.Errorf("cost is %d, less than 1", l.Cost)
	case l.MaxAttempts == unset:
		l.MaxAttempts = f.base.MaxAttempts
	case l.MaxAttempts < 1:
		return none, fmt.Errorf("max_attempts is %d, less than 1", l.MaxAttempts)
	}
	return callqueue.Call(l), nil
}

// write inserts what is at hand in one statement. Where that meets a duplicate, or Postgres does not
// say which call it refuses, it inserts one by one.
func (f *filing) write(ctx context.Context) error {
	calls, lines := f.calls, f.lines
	f.calls, f.lines, f.bytes = nil, nil, 0
	ids, err := f.client.InsertManyTx(ctx, f.tx, calls)
	invalid, isInvalid := errors.AsType[*callqueue.InvalidCallError](err)
	switch {
	case err == nil:
		for _, id := range ids {
			f.results = append(f.results, inserted{ID: id})
		}
		return nil
	case isInvalid && invalid.Index >= 0:
		return fmt.Errorf("line %d: %w", lines[invalid.Index], refused(err))
	case !isInvalid && !errors.Is(err, callqueue.ErrDuplicate):
		return err
	}
	for i, call := range calls {
		id, err := f.client.InsertTx(ctx, f.tx, call)
		duplicate := errors.Is(err, callqueue.ErrDuplicate)
		if err != nil && !duplicate {
			return fmt.Errorf("line %d: %w", lines[i], refused(err))
		}
		if duplicate {
			f.duplicates++
		}
		f.results = append(f.results, inserted{id, duplicate})
	}
	return nil
}
