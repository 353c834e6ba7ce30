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
	"text/tabwriter"
	"time"

	"github.com/callq/callq/internal/admin"
)

// show writes a value to stdout in one piece: as JSON, indented for -o json, or for people by print.
func (a *app) show(value any, print func(io.Writer)) error {
	var b bytes.Buffer
	if a.output == "table" {
		print(&b)
	} else if err := a.encode(&b, value); err != nil {
		return err
	}
	_, err := a.stdout.Write(b.Bytes())
	return err
}

func (a *app) encode(to io.Writer, value any) error {
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	if a.output == "json" {
		e.SetIndent("", "  ")
	}
	return e.Encode(value)
}

// showRows writes a list to stdout: for people by print, a JSON array, or a JSON value per line.
func showRows[T any](a *app, rows []T, print func(io.Writer)) error {
	if a.output != "jsonl" {
		return a.show(append([]T{}, rows...), print)
	}
	var b bytes.Buffer
	for _, row := range rows {
		if err := a.encode(&b, row); err != nil {
			return err
		}
	}
	_, err := a.stdout.Write(b.Bytes())
	return err
}

// table shows rows of T to people.
type table[T any] struct {
	columns string        // their titles, between commas
	cells   func(T) []any // see cell
}

// show writes a list to stdout.
func (t table[T]) show(a *app, rows []T) error {
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
	case *string:
		return printable(admin.Text(v))
	case *int:
		return admin.Text(v)
	case *time.Time:
		return admin.Instant(v)
	case time.Time:
		return admin.Instant(&v)
	case []string:
		return printable(dash(strings.Join(v, ",")))
	}
	return printable(fmt.Sprint(value))
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
