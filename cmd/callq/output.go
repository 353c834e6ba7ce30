package main

import (
	"bufio"
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

// table shows rows of T to people.
type table[T any] struct {
	columns string        // their titles, between commas
	cells   func(T) []any // see cell
}

// printRows writes a list to stdout: a table, a JSON array, or a JSON value per line.
func printRows[T any](a *app, rows []T, t table[T]) error {
	switch a.output {
	case "json":
		return a.printJSON(append([]T{}, rows...))
	case "jsonl":
		for _, row := range rows {
			if err := a.printJSON(row); err != nil {
				return err
			}
		}
		return nil
	}
	return t.print(a.stdout, rows)
}

// print writes the table. A row may have fewer cells than there are columns: the rest is left out.
func (t table[T]) print(to io.Writer, rows []T) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(t.columns, ",", "\t"))
	for _, row := range rows {
		var line []string
		for _, value := range t.cells(row) {
			line = append(line, cell(value))
		}
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	return w.Flush()
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

// printJSON writes a value to stdout: indented for -o json, in one line for jsonl.
func (a *app) printJSON(value any) error {
	e := json.NewEncoder(a.stdout)
	e.SetEscapeHTML(false)
	if a.output == "json" {
		e.SetIndent("", "  ")
	}
	return e.Encode(value)
}

func printable(s string) string { return admin.Printable(s) }
func short(s string) string     { return admin.Short(s) }
func dash(s string) string      { return admin.Dash(s) }

// confirm asks on a terminal, and needs --yes off it.
func (a *app) confirm(question string) error {
	if a.yes {
		return nil
	}
	if !isTerminal(a.stdin) {
		return usagef("this cannot be undone, and there is nobody to ask: give --yes to do it")
	}
	fmt.Fprint(a.stderr, question+" [y/N] ")
	answer, _ := bufio.NewReader(a.input).ReadString('\n') // no answer is a no
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
