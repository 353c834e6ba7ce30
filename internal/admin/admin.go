// Package admin reads what operators look at: queues, limits, workers, attempts, and why a call is where it is. The
// command line prints it, and internal/console shows it in a browser.
//
// It takes no lock and writes nothing. So do not decide anything by what it returns.
package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/ledger"
)

// InSnapshot runs what reads with several statements, so that all of them see the same.
func InSnapshot(ctx context.Context, pool *pgxpool.Pool, read func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, read)
}

// Compiling a plan takes longer than it runs.
const beginSQL = `SELECT clock_timestamp() FROM set_config('jit', 'off', true)`

// collect runs a query and gathers its rows; what names it in an error. No row is an empty slice.
func collect[T any](ctx context.Context, db ledger.DB, what, sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return list, nil
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

func inUTC(times ...*time.Time) {
	for _, at := range times {
		if at != nil {
			*at = at.UTC()
		}
	}
}

// Printable keeps what producers wrote from moving the terminal's cursor, or turning a line round.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// Short cuts a text for a table.
func Short(s string) string {
	if runes := []rune(s); len(runes) > 60 {
		return string(runes[:59]) + "…"
	}
	return s
}

// Instant writes a time in UTC; nil is a dash.
func Instant(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// Ago says how long before now something was.
func Ago(now, at time.Time) string {
	return max(0, now.Sub(at)).Round(100*time.Millisecond).String() + " ago"
}

// Text writes what may be absent; nil is a dash.
func Text[T any](v *T) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

// Dash writes an empty text as a dash.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
