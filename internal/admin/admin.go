// Package admin reads what operators look at: calls, queues, limits, workers, attempts, and why a call waits. The
// command line prints it, and internal/console shows it in a browser.
//
// It takes no lock and writes nothing. What it returns may have changed by then, so make no decisions by it. All times
// are in UTC.
package admin

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/ledger"
)

// reader reads from a pool or within a transaction. Its first error ends the reading: what is read after that is empty.
type reader struct {
	ctx context.Context
	db  ledger.DB
	now time.Time // Postgres's clock, within a snapshot
	err error
}

// inSnapshot runs read, whose statements all see the same state. It turns off the compiling of plans, which takes longer
// than they run.
func inSnapshot(ctx context.Context, pool *pgxpool.Pool, read func(*reader)) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
		r := &reader{ctx: ctx, db: tx}
		begun := one[struct{ Now time.Time }](r, "read the clock", `SELECT clock_timestamp() AS now FROM set_config('jit', 'off', true)`)
		if r.err == nil {
			r.now = begun.Now
			read(r)
		}
		return r.err
	})
}

// Collect returns the rows of a query, an empty slice if there are none. Their times are in UTC; what names the query in
// an error.
func Collect[T any](ctx context.Context, db ledger.DB, what, sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if rows.Conn() != nil {
		rows.Conn().TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return found, nil
}

// list is Collect for a reader.
func list[T any](r *reader, what, sql string, args ...any) []T {
	if r.err != nil {
		return nil
	}
	found, err := Collect[T](r.ctx, r.db, what, sql, args...)
	r.err = err
	return found
}

// one returns the row of a query, nil if there is none.
func one[T any](r *reader, what, sql string, args ...any) *T {
	found := list[T](r, what, sql, args...)
	if len(found) == 0 {
		return nil
	}
	return &found[0]
}

// check keeps the error of what another package read.
func (r *reader) check(err error) {
	if r.err == nil {
		r.err = err
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

// Text writes a value, a time in UTC; nil is a dash.
func Text(value any) string {
	switch v := value.(type) {
	case time.Time:
		return Instant(&v)
	case *time.Time:
		return Instant(v)
	case *string:
		if v != nil {
			return *v
		}
	case *int:
		if v != nil {
			return fmt.Sprint(*v)
		}
	default:
		return fmt.Sprint(v)
	}
	return "-"
}

// Dash writes an empty text as a dash.
func Dash(s string) string { return cmp.Or(s, "-") }
