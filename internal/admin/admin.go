// Package admin reads what operators look at: calls, queues, limits, workers, attempts, and why a call waits. The
// command line prints it, and internal/console shows it in a browser.
//
// It takes no lock and writes nothing. What it returns may have changed by then, so make no decisions by it. All times
// are in UTC.
package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/ledger"
)

// InSnapshot runs read, whose statements all see the same state.
func InSnapshot(ctx context.Context, pool *pgxpool.Pool, read func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, read)
}

// begin returns Postgres's time. It also turns off the compiling of plans, which takes longer than they run.
func begin(ctx context.Context, tx pgx.Tx) (time.Time, error) {
	now, err := collectOne[struct{ Now time.Time }](ctx, tx, "read the clock",
		`SELECT clock_timestamp() AS now FROM set_config('jit', 'off', true)`)
	if err != nil {
		return time.Time{}, err
	}
	return now.Now, nil
}

// query runs a query whose times are read in UTC.
func query(ctx context.Context, db ledger.DB, sql string, args ...any) (pgx.Rows, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err == nil && rows.Conn() != nil {
		rows.Conn().TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
	}
	return rows, err
}

// collect returns the rows of a query, an empty slice if there are none; what names it in an error.
func collect[T any](ctx context.Context, db ledger.DB, what, sql string, args ...any) ([]T, error) {
	rows, err := query(ctx, db, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return list, nil
}

// collectOne returns the row of a query, nil if there is none.
func collectOne[T any](ctx context.Context, db ledger.DB, what, sql string, args ...any) (*T, error) {
	rows, err := query(ctx, db, sql, args...)
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

// Printable replaces what could move the terminal's cursor or reverse a line. Producers may have written anything.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// Short cuts a text to 60 characters, for a table.
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

// Text writes a value; nil is a dash.
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
