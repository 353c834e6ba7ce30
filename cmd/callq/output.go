package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
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

// printable keeps what producers wrote from moving the terminal's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// short cuts a text for a table.
func short(s string) string {
	if runes := []rune(s); len(runes) > 60 {
		return string(runes[:59]) + "…"
	}
	return s
}

// instant writes a time in UTC; nil is a dash.
func instant(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// text writes what may be absent; nil is a dash.
func text[T any](v *T) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

// dash writes an empty text as a dash.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
