// Package admin reads what operators see: calls, queues, limits, workers, attempts, and why a call waits. The
// command line prints it, and internal/console shows it in a browser.
//
// It takes no lock and writes nothing. What it returns may have changed by then, so make no decisions by it. All times
// are in UTC.
package admin

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/callq/callq/internal/ledger"
)

// Pool begins transactions, as a schema.DB does.
type Pool interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// reader reads within a snapshot, so that all its statements see the same state. Its first error ends the reading: what
// is read after that is empty.
type reader struct {
	ctx context.Context
	tx  pgx.Tx
	now time.Time // Postgres's clock
	err error
	// standby: this is one, and has replayed what was committed by then; nil: it is none.
	standby *time.Time
	// quick: of limits per key, only keys with open attempts are compared for the one that uses most.
	quick bool
	// listed: what is occupied of limits is listed, to see when it comes free.
	listed bool
}

// snapshot returns what read makes of one state. It turns off the compiling of plans, which takes longer than they run.
func snapshot[T any](ctx context.Context, pool Pool, read func(*reader) T) (found T, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
		r := &reader{ctx: ctx, tx: tx}
		if begun := one[struct {
			Now     time.Time
			Standby *time.Time
		}](r, "read the clock", clockSQL); begun != nil {
			r.now, r.standby = begun.Now, begun.Standby
			found = read(r)
		}
		return r.err
	})
	return found, err
}

const clockSQL = `
SELECT clock_timestamp() AS now, CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_xact_replay_timestamp(), pg_postmaster_start_time()) END AS standby
FROM set_config('jit', 'off', true)`

// Collect returns the rows of a query, an empty slice if there are none. Their times are in UTC; what names the query in
// an error.
func Collect[T any](ctx context.Context, db ledger.DB, what, sql string, args ...any) ([]T, error) {
	rows, _ := db.Query(ctx, sql, args...)
	if conn := rows.Conn(); conn != nil {
		conn.TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	return found, ledger.Wrap(what, err)
}

// list is Collect for a reader.
func list[T any](r *reader, what, sql string, args ...any) (found []T) {
	if r.err == nil {
		found, r.err = Collect[T](r.ctx, r.tx, what, sql, args...)
	}
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

// Ago returns how long before now something was.
func Ago(now, at time.Time) string {
	return max(0, now.Sub(at)).Round(100*time.Millisecond).String() + " ago"
}

// About writes a duration as people say it: 340 ms, 41 s, 41 min, 5.2 h, 11 d.
func About(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(0, d.Milliseconds()))
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	}
	return fmt.Sprintf("%.0f d", d.Hours()/24)
}

// Text writes a value or what a pointer points to: a time in UTC, nil as a dash.
func Text(value any) string {
	if v := reflect.ValueOf(value); v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "-"
		}
		value = v.Elem().Interface()
	}
	if at, ok := value.(time.Time); ok {
		return at.UTC().Format("2006-01-02 15:04:05Z")
	}
	return fmt.Sprint(value)
}

// Instant writes a time in UTC; nil is a dash.
func Instant(t *time.Time) string { return Text(t) }

// Dash writes an empty text as a dash.
func Dash(s string) string { return cmp.Or(s, "-") }
