package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/policy"
)

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
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func exitf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

func usagef(format string, args ...any) error { return exitf(exitUsage, format, args...) }

// exitCode says on stderr what went wrong, and returns the exit code.
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
	if errors.Is(err, context.Canceled) {
		return exitFailed, "callq: interrupted"
	}
	text := "callq: " + oneLine(err.Error())
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit.code, text
	}
	if problems, ok := errors.AsType[*config.Error](err); ok {
		return exitUsage, problems.Error() // with lines and carets
	}
	if errors.As(err, new(policy.RateError)) {
		return exitUsage, text
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "22021" {
		doing, _, _ := strings.Cut(text, ": "+pg.Severity)
		return exitUsage, doing + ": what was given is not valid UTF-8"
	}
	switch hint := poolerHint(err); {
	case hint != "":
		return exitUsage, text + "; " + hint
	case errors.Is(err, config.ErrNoPostgres), errors.Is(err, config.ErrNoRedis):
		return exitUsage, text
	case isUnreachable(err):
		return exitUnreachable, text + "; check that Postgres and Redis run and can be reached, and try again"
	case isForbidden(err):
		return exitFailed, text + "; use a role that may, or see `callq migrate roles --help`"
	}
	return exitFailed, text
}

// isUnreachable tells a server that is away or silent from one that refused a statement.
func isUnreachable(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok { // 55000: the database takes no connections now
		return strings.HasPrefix(pg.Code, "57P") || strings.HasPrefix(pg.Code, "08") || pg.Code == "53300" || connecting && pg.Code == "55000"
	}
	if connecting {
		return true
	}
	if e, ok := errors.AsType[net.Error](err); ok { // a context's deadline is one too
		_, ofFile := e.(syscall.Errno) // bare: net wraps those of a connection
		return !ofFile
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// isForbidden reports whether Postgres did not let this role do it.
func isForbidden(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "42501"
}

// oneLine makes one line of pgx's message about several addresses. An address that was tried with
// and without TLS is named once.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\t' })
	for i := len(lines) - 2; i >= 0; i-- {
		if strings.HasPrefix(lines[i+1], lines[i]) {
			lines = slices.Delete(lines, i, i+1)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, " "), ":  ", ": ")
}
