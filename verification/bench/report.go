package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
)

// show writes what was measured, as JSON or as a table.
func show[T any](w io.Writer, output string, all []T, err error, table func(io.Writer, []T) error) error {
	if err != nil {
		return err
	}
	if output != "json" {
		return table(w, all)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(all)
}

// rows are the table's: what is shown of each measure.
var rows = []struct {
	name, only string // only: the measure it is shown of, "": all
	value      func(figure) *float64
}{
	{"a second", "", func(f figure) *float64 { return &f.PerSecond }},
	{"own CPU, µs a call", "", func(f figure) *float64 { return &f.OwnMicros }},
	{"Postgres's CPU, µs a call", "", func(f figure) *float64 { return f.PostgresMicros }},
	{"Redis's CPU, µs a call", "drain", func(f figure) *float64 { return f.RedisMicros }},
	{"WAL, bytes a call", "", func(f figure) *float64 { return &f.WALBytes }},
}

// writeTable writes, for each measure, the median over the rounds and, in brackets, the least and
// the most. The ratio is that of the ratios within a round, which what else the machine does moves
// less than it does the figures.
func writeTable(w io.Writer, figures []figure) error {
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(out, "|\tmedian (least to most)\t|\tcallq\t|\tRiver\t|\tcallq / River\t|")
	fmt.Fprintln(out, "|\t---\t|\t--:\t|\t--:\t|\t--:\t|")
	for _, measure := range []string{"single insert", "bulk insert", "drain"} {
		for _, row := range rows {
			if row.only != "" && row.only != measure {
				continue
			}
			callq := column(figures, "callq", measure, row.value)
			river := column(figures, "River", measure, row.value)
			fmt.Fprintf(out, "|\t%s: %s\t|\t%s\t|\t%s\t|\t%s\t|\n", measure, row.name,
				spread(callq, number), spread(river, number), spread(ratios(callq, river), ratio))
		}
	}
	return out.Flush()
}

// column is a value in each round, none where it could not be had.
func column(figures []figure, peer, measure string, value func(figure) *float64) map[int]float64 {
	values := map[int]float64{}
	for _, f := range figures {
		if v := value(f); f.Peer == peer && f.Measure == measure && v != nil {
			values[f.Round] = *v
		}
	}
	return values
}

func ratios(a, b map[int]float64) map[int]float64 {
	list := map[int]float64{}
	for round := range a {
		if b[round] > 0 {
			list[round] = a[round] / b[round]
		}
	}
	return list
}

// spread is "median (least to most)".
func spread(values map[int]float64, format func(float64) string) string {
	if len(values) == 0 {
		return "-"
	}
	var sorted []float64
	for _, v := range values {
		sorted = append(sorted, v)
	}
	slices.Sort(sorted)
	n := len(sorted)
	median := (sorted[(n-1)/2] + sorted[n/2]) / 2
	return fmt.Sprintf("%s (%s to %s)", format(median), format(sorted[0]), format(sorted[n-1]))
}

func ratio(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// number writes three places that count, and thousands apart.
func number(v float64) string {
	if v < 99.95 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	if n := int64(math.Round(v)); n < 1000 {
		return strconv.FormatInt(n, 10)
	} else if n < 1_000_000 {
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	} else {
		return fmt.Sprintf("%d,%03d,%03d", n/1_000_000, n/1000%1000, n%1000)
	}
}
