package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/policy"
)

// show writes a value to stdout in one piece: as JSON, indented for -o json, or for people by print.
func (a *app) show(value any, print func(io.Writer)) error {
	var b bytes.Buffer
	if a.output == "table" {
		print(&b)
	} else {
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if a.output == "json" {
			e.SetIndent("", "  ")
		}
		if err := e.Encode(value); err != nil {
			return err
		}
	}
	_, err := a.stdout.Write(b.Bytes())
	return err
}

// showRows writes a list to stdout: for people by print, a JSON array, or a JSON value per line.
func showRows[T any](a *app, rows []T, print func(io.Writer)) error {
	if a.output != "jsonl" {
		return a.show(append([]T{}, rows...), print)
	}
	for _, row := range rows {
		if err := a.show(row, print); err != nil {
			return err
		}
	}
	return nil
}

// table shows rows of T to people.
type table[T any] struct {
	columns string        // their titles, between commas
	cells   func(T) []any // see cell
}

// show writes a list to stdout, unless it could not be read.
func (t table[T]) show(a *app, rows []T, err error) error {
	if err != nil {
		return err
	}
	return showRows(a, rows, func(w io.Writer) { t.print(w, rows) })
}

// print writes the table. A row may have fewer cells than there are columns: the rest is left out.
func (t table[T]) print(to io.Writer, rows []T) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(t.columns, ",", "\t"))
	for _, row := range rows {
		var line []string
		for _, value := range t.cells(row) {
			line = append(line, cell(value))
		}
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	_ = w.Flush() // into show's buffer
}

// below writes the table, if it has rows, below an empty line.
func (t table[T]) below(to io.Writer, rows []T) {
	if len(rows) > 0 {
		fmt.Fprintln(to)
		t.print(to, rows)
	}
}

// cell writes a value for people: what is absent as a dash, an instant in UTC, a list with commas.
func cell(value any) string {
	switch v := value.(type) {
	case []string:
		value = strings.Join(v, ",")
	case json.RawMessage:
		value = string(v)
	}
	return printable(dash(admin.Text(value)))
}

func printable(s string) string { return admin.Printable(s) }
func short(s string) string     { return admin.Short(s) }
func dash(s string) string      { return admin.Dash(s) }

// confirm asks on a terminal, and needs --yes off it.
func (a *app) confirm(ctx context.Context, question string) error {
	if a.yes {
		return nil
	}
	if !isTerminal(a.stdin) {
		return usagef("%s this cannot be undone, and there is nobody to ask: give --yes to do it", question)
	}
	fmt.Fprint(a.stderr, question+" [y/N] ")
	answer, _ := bufio.NewReader(a.input(ctx)).ReadString('\n') // no answer is a no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was done")
}

// isTerminal takes every character device but the null device for a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// The exit codes. They are promises.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2 // usage or configuration
	exitFindings    = 3 // a check found problems
	exitNotFound    = 4
	exitUnreachable = 5 // Postgres or Redis
)

// exitError is an error that knows its exit code.
type exitError struct {
	code int
	error
}

func (e *exitError) Unwrap() error { return e.error }

func exitf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

func usagef(format string, args ...any) error { return exitf(exitUsage, format, args...) }

// exitCode writes to stderr what went wrong, and returns the exit code.
func exitCode(stderr io.Writer, err error) int {
	code, text := judge(err)
	if text != "" {
		fmt.Fprintln(stderr, text)
	}
	return code
}

// judge returns an error's exit code and what to say of it.
func judge(err error) (int, string) {
	if err == nil {
		return exitDone, ""
	}
	text := "callq: " + explained(err)
	exit, isExit := errors.AsType[*exitError](err)
	problems, ofConfig := errors.AsType[*config.Error](err)
	switch {
	case errors.Is(err, context.Canceled):
		return exitFailed, "callq: interrupted"
	case isExit:
		return exit.code, text
	case ofConfig:
		return exitUsage, problems.Error() // with lines and carets
	case errors.Is(err, policy.ErrRate), poolerHint(err) != "":
		return exitUsage, text
	case errors.Is(err, callqueue.ErrNotFound):
		return exitNotFound, text
	case isUnreachable(err):
		return exitUnreachable, text + "; check that Postgres and Redis run and can be reached, and try again"
	case isForbidden(err):
		return exitFailed, text + "; use a role that may, or see `callq migrate roles --help`"
	}
	return exitFailed, text
}

// hasCode reports whether Postgres's error has one of these codes, or of a class such as "08".
func hasCode(err error, codes ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.ContainsFunc(codes, func(code string) bool { return strings.HasPrefix(pg.Code, code) })
}

// isForbidden reports whether Postgres did not let this role do it.
func isForbidden(err error) bool { return hasCode(err, "42501") }

// isUnreachable tells a server that is away or silent from one that refused a statement.
func isUnreachable(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	if _, answered := errors.AsType[*pgconn.PgError](err); answered { // 55000: the database takes no connections now
		return hasCode(err, "57P", "08", "53300") || connecting && hasCode(err, "55000")
	}
	if e, ok := errors.AsType[net.Error](err); ok { // a context's deadline is one too
		_, ofFile := e.(syscall.Errno) // bare: net wraps those of a connection
		return connecting || !ofFile
	}
	return connecting || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// poolerHint is what to do about an error that only a pooler causes, "" for others.
func poolerHint(err error) string {
	if fix := doctor.PoolerFix(err); fix != "" {
		return "; " + fix
	}
	return ""
}

// explained is an error in one line, with what to do about a pooler.
func explained(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ") + poolerHint(err)
}
