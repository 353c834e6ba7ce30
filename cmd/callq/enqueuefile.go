package main

import (
	"bufio"
	"bytes"
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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/config"
)

// What is written at once.
const (
	linesAtOnce = 1000
	bytesAtOnce = 16 << 20
)

// line is what a line for --from may say: call_queue's columns. Null is the default, as it is there.
type line struct {
	Queue       *string         `json:"queue"`
	Task        *string         `json:"task"`
	Key         *string         `json:"key"`
	Data        json.RawMessage `json:"call_data"`
	Cost        *int64          `json:"cost"`
	Priority    *int            `json:"priority"`
	RunAt       *time.Time      `json:"run_at"`
	ExpiresAt   *time.Time      `json:"expires_at"`
	UniqueKey   *string         `json:"unique_key"`
	MaxAttempts *int            `json:"max_attempts"`
}

// call is the line over what the flags say.
func (l line) call(c callqueue.Call) (callqueue.Call, error) {
	over(&c.Queue, l.Queue)
	over(&c.Task, l.Task)
	over(&c.Key, l.Key)
	over(&c.Cost, l.Cost)
	over(&c.RunAt, l.RunAt)
	over(&c.ExpiresAt, l.ExpiresAt)
	over(&c.UniqueKey, l.UniqueKey)
	over(&c.MaxAttempts, l.MaxAttempts)
	if l.Priority != nil {
		c.Priority = l.Priority
	}
	if len(l.Data) > 0 && string(l.Data) != "null" {
		c.Data = l.Data
	}
	switch {
	case c.Cost < 1:
		return c, fmt.Errorf("cost is %d, less than 1", c.Cost)
	case l.MaxAttempts != nil && c.MaxAttempts < 1:
		return c, fmt.Errorf("max_attempts is %d, less than 1", c.MaxAttempts)
	}
	return c, nil
}

func over[T any](value, said *T) {
	if said != nil {
		*value = *said
	}
}

// filing is one run of enqueue --from: a transaction that takes all lines or none.
type filing struct {
	client  *callqueue.Client
	tx      pgx.Tx
	base    callqueue.Call
	queues  map[string]bool
	results []inserted

	calls []callqueue.Call // not yet written
	lines []int            // their numbers
	bytes int              // and their size
}

// enqueueFile is bounded only in waiting for Postgres: a file takes what it takes.
func (p *program) enqueueFile(ctx context.Context, f enqueueFlags) error {
	in := p.input
	if f.from != "-" {
		file, err := os.Open(f.from)
		if err != nil {
			return usagef("--from: %w", err)
		}
		defer file.Close()
		in = file
	}
	return p.withPostgres(ctx, commandSettings(), func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
		client, err := f.client(ctx, p.input, cfg, pool)
		if err != nil {
			return err
		}
		all := filing{client: client, base: f.call, queues: map[string]bool{}}
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			all.tx = tx
			return all.read(ctx, in, int(cfg.Calls.MaxData))
		})
		if err != nil {
			return fmt.Errorf("nothing was inserted: %w", err)
		}
		return p.printFiled(ctx, pool, all)
	})
}

func (p *program) printFiled(ctx context.Context, pool *pgxpool.Pool, all filing) error {
	duplicates := 0
	for _, row := range all.results {
		if row.Duplicate {
			duplicates++
		}
		if p.output == "table" {
			fmt.Fprintln(p.stdout, row.ID)
		}
	}
	if p.output != "table" {
		if err := printRows(p, all.results); err != nil {
			return err
		}
	}
	fmt.Fprintf(p.stderr, "%d calls inserted", len(all.results)-duplicates)
	if duplicates > 0 {
		fmt.Fprintf(p.stderr, ", %d not: unfinished calls have their unique keys, whose ids are given instead", duplicates)
	}
	fmt.Fprintln(p.stderr)
	p.warnOfQueues(ctx, pool, all.queues)
	return nil
}

// read takes the lines in, 1,000 at a time. A blank line is passed over.
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

func (f *filing) parse(text []byte) (callqueue.Call, error) {
	if !utf8.Valid(text) {
		return callqueue.Call{}, errors.New("not valid UTF-8")
	}
	if text[0] != '{' {
		return callqueue.Call{}, errors.New("not a JSON object")
	}
	var l line
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return callqueue.Call{}, jsonError(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return callqueue.Call{}, errors.New("something follows the JSON object")
	}
	return l.call(f.base)
}

// jsonError is what is wrong with a line, without the names of Go.
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

// write inserts what is at hand at once; where that meets a duplicate, or Postgres does not say
// which call it refuses, one by one.
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
		return usagef("line %d: %w", lines[invalid.Index], refused(err, columnOf))
	case !isInvalid && !errors.Is(err, callqueue.ErrDuplicate):
		return err
	}
	for i, call := range calls {
		id, err := f.client.InsertTx(ctx, f.tx, call)
		duplicate := errors.Is(err, callqueue.ErrDuplicate)
		if err != nil && !duplicate {
			if _, invalid := errors.AsType[*callqueue.InvalidCallError](err); invalid {
				return usagef("line %d: %w", lines[i], refused(err, columnOf))
			}
			return err
		}
		f.results = append(f.results, inserted{id, duplicate})
	}
	return nil
}

func columnOf(field string) string {
	switch field {
	case "RunAt":
		return "run_at"
	case "ExpiresAt":
		return "expires_at"
	case "UniqueKey":
		return "unique_key"
	case "MaxAttempts":
		return "max_attempts"
	case "Data":
		return "call_data"
	case "":
		return "the call"
	}
	return string(field[0]+'a'-'A') + field[1:]
}
