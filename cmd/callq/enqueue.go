package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/words"
)

// enqueued is what enqueue is told.
type enqueued struct {
	call       callqueue.Call
	in         time.Duration
	data, from string
	wait       bool
}

// inserted is what enqueue prints of a call.
type inserted struct {
	ID        int64 `json:"id"`
	Duplicate bool  `json:"duplicate"` // an unfinished call has the unique key: ID is that call's
}

func enqueueCommand(a *app) *cobra.Command {
	e := enqueued{call: callqueue.Call{Priority: new(callqueue.DefaultPriority)}}
	cmd := &cobra.Command{
		Use: "enqueue [TASK]", Short: "Insert calls, and print their ids",
		Long: `Insert a call of TASK (default: http), or one for each JSON object of a file, and print the ids.

Each object for --from has any of: queue, task, key, call_data, cost, priority, run_at, expires_at,
unique_key, max_attempts. Flags give what an object leaves out. Either all calls are inserted or none: if one
is refused, its number is printed and nothing is inserted.

If an unfinished call of the queue has the same unique key, the call is not inserted. callq prints that
call's id, says so on stderr and exits with 0, so that repeating a command does no harm.

With --wait it then waits until the calls have ended, and prints and exits as callq calls wait does.`,
		Example: `  callq enqueue --queue payments --key acct_42 --data '{"method":"POST","url":"https://api.example.com/charges"}'
  callq enqueue send_email --in 10m --data @mail.json
  callq enqueue --from calls.jsonl`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// To the client, 0 means the default. A written 0 is meant.
			switch {
			case e.call.Cost == 0:
				return usagef("--cost is 0, less than 1")
			case e.call.MaxAttempts == 0 && cmd.Flags().Changed("max-attempts"):
				return usagef("--max-attempts is 0, less than 1")
			}
			insert, one := e.insert, !cmd.Flags().Changed("from")
			if !one {
				insert = e.insertFile
			}
			return a.connected(commandSettings(), func(ctx context.Context, db *database, args []string) error {
				if e.wait {
					if err := db.mayWait(ctx); err != nil {
						return fmt.Errorf("nothing was inserted: %w", err)
					}
				}
				rows, err := insert(ctx, db, args)
				switch {
				case err != nil:
					return err
				case e.wait && len(rows) > 0:
					return db.waitInserted(ctx, cmd, rows)
				}
				people := func(w io.Writer) {
					for _, row := range rows {
						fmt.Fprintln(w, row.ID)
					}
				}
				if one {
					return db.show(rows[0], people)
				}
				return showRows(a, rows, people)
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&e.call.Queue, "queue", "", "queue whose limits hold (default: default)")
	flags.StringVar(&e.call.Key, "key", "", "whose call it is")
	flags.Int64Var(&e.call.Cost, "cost", 1, "units that it takes of a limit that counts cost")
	flags.IntVar(e.call.Priority, "priority", *e.call.Priority, "0 (first) to 9 (last)")
	flags.TimeVar(&e.call.RunAt, "at", time.Time{}, []string{time.RFC3339}, "earliest time: 2026-11-21T09:00:00Z (default: now)")
	durationVar(flags, &e.in, 0, "in", "earliest time from now on, such as 10m or 1d")
	flags.StringVar(&e.call.UniqueKey, "unique", "", "key that no other unfinished call of the queue has")
	flags.IntVar(&e.call.MaxAttempts, "max-attempts", 0, "failures before it is given up (default: what the queue says)")
	flags.StringVar(&e.data, "data", "", "call_data: JSON, - for stdin, @FILE for a file (default: {})")
	flags.StringVar(&e.from, "from", "", "file with a JSON object for each call, - for stdin")
	flags.BoolVar(&e.wait, "wait", false, "wait until the calls have ended, as callq calls wait does")
	cmd.MarkFlagsMutuallyExclusive("at", "in")
	cmd.MarkFlagsMutuallyExclusive("from", "data")
	cmd.MarkFlagsMutuallyExclusive("from", "unique")
	return cmd
}

// resolve reads what arguments leave to be read: the data, and Postgres's clock, from which --in counts.
func (e *enqueued) resolve(ctx context.Context, db *database, args []string) error {
	if len(args) > 0 {
		e.call.Task = args[0]
	}
	if e.data != "" {
		data, err := db.data(ctx, e.data)
		if err != nil {
			return err
		}
		e.call.Data = data // the client checks it
	}
	if e.in > 0 {
		var now time.Time
		if err := db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return fmt.Errorf("read Postgres's clock: %w", err)
		}
		e.call.RunAt = now.Add(e.in)
	}
	return nil
}

// data is what --data gives: itself, what stdin has (-), or a file (@file).
func (a *app) data(ctx context.Context, text string) (json.RawMessage, error) {
	name, isFile := strings.CutPrefix(text, "@")
	if !isFile && name != "-" {
		return json.RawMessage(text), nil
	}
	from, err := a.open(ctx, "data", name)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	data, err := io.ReadAll(from)
	if err != nil {
		return nil, usagef("--data: read %s: %w", name, err)
	}
	return data, nil
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

// insert inserts the call that flags describe.
func (e *enqueued) insert(ctx context.Context, db *database, args []string) ([]inserted, error) {
	var row inserted
	err := db.within(ctx, func(ctx context.Context) (err error) {
		if err = e.resolve(ctx, db, args); err == nil {
			row, err = result(db.calls.Insert(ctx, e.call))
		}
		return err
	})
	if row.Duplicate {
		fmt.Fprintf(db.stderr, "callq: not inserted: unfinished call %d of the queue has the unique key %q\n", row.ID, e.call.UniqueKey)
	}
	return []inserted{row}, err
}

// result is what Insert or InsertTx returned. A duplicate is none of its errors, and a call that was refused for what it
// holds is one of usage.
func result(id int64, err error) (inserted, error) {
	if invalid, ok := errors.AsType[*callqueue.InvalidCallError](err); ok {
		return inserted{}, usagef("%s %s", cmp.Or(invalid.Field, "the call"), invalid.Reason)
	}
	duplicate := errors.Is(err, callqueue.ErrDuplicate)
	if duplicate {
		err = nil
	}
	return inserted{id, duplicate}, err
}

// insertFile inserts the calls of a file in one transaction. --timeout bounds the wait for Postgres alone.
func (e *enqueued) insertFile(ctx context.Context, db *database, args []string) (rows []inserted, err error) {
	in, err := db.open(ctx, "from", e.from)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if err := e.resolve(ctx, db, args); err != nil {
		return nil, err
	}
	// Who inserts the same unique keys in another order at the same time may wait for these as these wait for those: Postgres ends one of
	// the two, which then begins again.
	again, size := rereader(in), sizeOf(in)
	if err := db.live(progress{what: "enqueue", about: true}, func(tell report) error {
		for turn := 1; ; turn++ {
			objects := json.NewDecoder(again())
			err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
				rows, err = e.insertAll(ctx, db, tx, objects, func(inserted int64) {
					tell("", inserted, aboutAll(inserted, objects.InputOffset(), size))
				})
				return err
			})
			if err == nil {
				return nil
			}
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "40P01" || turn == 10 {
				return fmt.Errorf("nothing was inserted: %w", err)
			}
			fmt.Fprintln(db.stderr, "others insert the same unique keys: begun again")
		}
	}); err != nil {
		return nil, err
	}
	duplicates := 0
	for _, row := range rows {
		if row.Duplicate {
			duplicates++
		}
	}
	fmt.Fprintf(db.stderr, "%s inserted, %s of unfinished calls\n",
		words.Count(int64(len(rows)-duplicates), "call"), words.Count(int64(duplicates), "duplicate"))
	return rows, nil
}

// sizeOf is the size of a file; 0: it is none that has one, such as a pipe.
func sizeOf(in io.Reader) int64 {
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return info.Size()
		}
	}
	return 0
}

// aboutAll is about how many calls a file of that size has, of which so many took the first bytes; 0: not known.
func aboutAll(calls, bytes, size int64) int64 {
	if bytes <= 0 {
		return 0
	}
	return int64(float64(calls) * float64(size) / float64(bytes))
}

// rereader returns what reads in from its beginning, each time anew. What cannot be sought, such as a pipe, is kept in memory.
func rereader(in io.Reader) func() io.Reader {
	if s, ok := in.(io.Seeker); ok {
		if begin, err := s.Seek(0, io.SeekCurrent); err == nil {
			return func() io.Reader {
				_, _ = s.Seek(begin, io.SeekStart)
				return in
			}
		}
	}
	var read bytes.Buffer
	return func() io.Reader {
		return io.MultiReader(bytes.NewReader(bytes.Clone(read.Bytes())), io.TeeReader(in, &read))
	}
}

// insertAll inserts a call for each object, a thousand at a time, or as many as have 16 MiB of call_data. It
// tells how many it has inserted.
func (e *enqueued) insertAll(ctx context.Context, db *database, tx pgx.Tx, objects *json.Decoder, tell func(int64)) (rows []inserted, err error) {
	var calls []callqueue.Call // not yet inserted
	size := 0                  // of their call_data
	for more := true; more; {
		call, err := e.read(objects)
		more = !errors.Is(err, io.EOF)
		if more && err != nil {
			return nil, usagef("call %d: %w", len(rows)+len(calls)+1, err)
		}
		if more {
			calls = append(calls, call)
			size += len(call.Data.(json.RawMessage))
		}
		if !more || len(calls) == 1000 || size >= 16<<20 {
			if rows, err = insertSome(ctx, db, tx, rows, calls); err != nil {
				return nil, err
			}
			calls, size = nil, 0
			tell(int64(len(rows)))
		}
	}
	return rows, nil
}

// insertSome inserts calls in one statement, and appends them to the rows. If one is refused or a duplicate, it inserts
// them one by one, which finds it.
func insertSome(ctx context.Context, db *database, tx pgx.Tx, rows []inserted, calls []callqueue.Call) ([]inserted, error) {
	if ids, err := db.calls.InsertManyTx(ctx, tx, calls); err == nil {
		for _, id := range ids {
			rows = append(rows, inserted{ID: id})
		}
		return rows, nil
	}
	for _, call := range calls {
		row, err := result(db.calls.InsertTx(ctx, tx, call))
		if err != nil {
			return nil, fmt.Errorf("call %d: %w", len(rows)+1, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// object is a call with call_queue's names, for JSON. Its fields are those of callqueue.Call.
type object struct {
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

// read reads the next object over what the flags say. Null means what is left out.
func (e *enqueued) read(objects *json.Decoder) (callqueue.Call, error) {
	var text json.RawMessage
	if err := objects.Decode(&text); err != nil {
		return callqueue.Call{}, err
	}
	if text[0] != '{' || !utf8.Valid(text) {
		return callqueue.Call{}, errors.New("not a JSON object in UTF-8")
	}
	const unset = math.MinInt
	data := json.RawMessage("{}")
	o := object(e.call)
	o.Data, o.Priority, o.MaxAttempts = &data, nil, cmp.Or(o.MaxAttempts, unset)
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&o); err != nil {
		return callqueue.Call{}, err
	}
	// To the client, 0 means the default, which is left out here.
	switch {
	case o.Cost == 0:
		return callqueue.Call{}, errors.New("cost is 0, less than 1")
	case o.MaxAttempts == 0:
		return callqueue.Call{}, errors.New("max_attempts is 0, less than 1")
	case o.MaxAttempts == unset:
		o.MaxAttempts = 0
	}
	o.Data, o.Priority = data, cmp.Or(o.Priority, e.call.Priority)
	return callqueue.Call(o), nil
}
