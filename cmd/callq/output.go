package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/callq/callq/internal/admin"
)

// column is one of a table's.
type column[T any] struct {
	title string
	text  func(T) string
}

// printRows writes a list to stdout: a table of columns, a JSON array, or a JSON value per line.
func printRows[T any](p *program, rows []T, columns ...column[T]) error {
	switch p.output {
	case "json":
		return p.printJSON(append([]T{}, rows...))
	case "jsonl":
		for _, row := range rows {
			if err := p.printJSON(row); err != nil {
				return err
			}
		}
		return nil
	}
	return printTable(p.stdout, rows, columns...)
}

func printTable[T any](to io.Writer, rows []T, columns ...column[T]) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	cells := make([]string, len(columns))
	for i, c := range columns {
		cells[i] = c.title
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
	for _, row := range rows {
		for i, c := range columns {
			cells[i] = printable(c.text(row))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// printJSON writes a value to stdout: indented for -o json, in one line for jsonl.
func (p *program) printJSON(value any) error {
	e := json.NewEncoder(p.stdout)
	e.SetEscapeHTML(false)
	if p.output == "json" {
		e.SetIndent("", "  ")
	}
	return e.Encode(value)
}

// The words of package report, as tables here use them.

func printable(s string) string   { return admin.Printable(s) }
func short(s string) string       { return admin.Short(s) }
func instant(t *time.Time) string { return admin.Instant(t) }
func text[T any](v *T) string     { return admin.Text(v) }
func dash(s string) string        { return admin.Dash(s) }
