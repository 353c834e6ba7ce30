package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
)

// What is written at once.
const (
	linesAtOnce = 1000
	bytesAtOnce = 16 << 20
)

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
	client  *callqueue.Client
	tx      pgx.Tx
	base    callqueue.Call // what the flags say
	queues  map[string]bool

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
		all := filing{client: db.calls, base: f.call, queues: map[string]bool{}}
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
		warnOfQueues(ctx, db, all.queues)
		return nil
	})(cmd, nil)
}

// read takes the lines in, 1,000 at a time. It skips blank lines.
func (f *filing) read(ctx context.Context, in io.Reader, maxData int) error {
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
		f.queues[call.Queue] = true
		f.calls, f.lines, f.bytes = append(f.calls, call), append(f.lines, number), f.bytes+len(text)
		if len(f.calls) == linesAtOnce || f.bytes >= bytesAtOnce {
			if err := f.write(ctx); err != nil {
				return err
			}
		}
	}
	err := scanner.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		return usagef("line %d: longer than %d bytes", number, longest)
	}
	if err != nil {
		return usagef("line %d: %w", number, err)
	}
	return f.write(ctx)
}

// parse reads a line over what the flags say. Null means the default, as in call_queue.
func (f *filing) parse(text []byte) (callqueue.Call, error) {
	var none callqueue.Call
	if !utf8.Valid(text) {
		return none, errors.New("not valid UTF-8")
	}
	if text[0] != '{' {
		return none, errors.New("not a JSON object")
	}
	var data json.RawMessage
	l := line(f.base)
	if f.base.Priority != nil {
		l.Priority = new(*f.base.Priority)
	}
	l.Data, l.MaxAttempts = &data, unset
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return none, jsonError(err)
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
	switch {
	case l.Cost < 1:
		return none, fmt.Errorf("cost is %d, less than 1", l.Cost)
	case l.MaxAttempts == unset:
		l.MaxAttempts = f.base.MaxAttempts
	case l.MaxAttempts < 1:
		return none, fmt.Errorf("max_attempts is %d, less than 1", l.MaxAttempts)
	}
	return callqueue.Call(l), nil
}

// unset stands for a max_attempts that a line does not give.
const unset = -1 << 31

// jsonError says what is wrong with a line, without naming anything of Go.
func jsonError(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s is a JSON %s, which it cannot be", wrong.Field, wrong.Value)
	}
	if wrong, ok := errors.AsType[*time.ParseError](err); ok {
		return fmt.Errorf("%s is not a time such as 2026-11-21T09:00:00Z", wrong.Value)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON object is cut short")
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("a call has no %s; it has queue, task, key, call_data, cost, priority, run_at, expires_at, "+
			"unique_key, max_attempts", field)
	}
	return fmt.Errorf("not a call: %w", err)
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
		return usagef("line %d: %w", lines[invalid.Index], refused(err, columns))
	case !isInvalid && !errors.Is(err, callqueue.ErrDuplicate):
		return err
	}
	for i, call := range calls {
		id, err := f.client.InsertTx(ctx, f.tx, call)
		duplicate := errors.Is(err, callqueue.ErrDuplicate)
		if _, invalid := errors.AsType[*callqueue.InvalidCallError](err); invalid {
			return usagef("line %d: %w", lines[i], refused(err, columns))
		}
		if err != nil && !duplicate {
			return err
		}
		if duplicate {
			f.duplicates++
		}
		f.results = append(f.results, inserted{id, duplicate})
	}
	return nil
}
