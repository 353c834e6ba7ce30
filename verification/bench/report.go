package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
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

// columns are the table's: what is shown of each measure.
var columns = []struct {
	name  string
	value func(figure) *float64
}{
	{"a second", func(f figure) *float64 { return &f.PerSecond }},
	{"own CPU, µs a call", func(f figure) *float64 { return f.OwnMicros }},
	{"Postgres's CPU, µs a call", func(f figure) *float64 { return f.PostgresMicros }},
	{"Redis's CPU, µs a call", func(f figure) *float64 { return f.RedisMicros }},
	{"WAL, bytes a call", func(f figure) *float64 { return &f.WALBytes }},
}

func measures() []string { return []string{"single insert", "bulk insert", "drain"} }

// writeTable writes a table for each measure, with a line for each peer: the median over the rounds and, behind it, by
// how much callq's is the multiple of it. That is the median of the ratios within a round, which what else the machine
// does moves less than it does the figures, and the least and the most of them.
func writeTable(w io.Writer, figures []figure) error {
	fmt.Fprintln(w, "Medians over the rounds. Behind the semicolon: callq's figure divided by the peer's, median (least to most).")
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	for _, measure := range measures() {
		fmt.Fprintf(out, "\n|\t%s\t|", measure)
		for _, c := range columns {
			fmt.Fprintf(out, "\t%s\t|", c.name)
		}
		fmt.Fprintf(out, "\n|\t---\t|%s\n", strings.Repeat("\t--:\t|", len(columns)))
		for _, peer := range measured(figures) {
			fmt.Fprintf(out, "|\t%s\t|", peer)
			for _, c := range columns {
				fmt.Fprintf(out, "\t%s\t|", cell(column(figures, "callq", measure, c.value), column(figures, peer, measure, c.value), peer == "callq"))
			}
			fmt.Fprintln(out)
		}
	}
	return out.Flush()
}

// measured are the peers that figures are of, in the order of peers.
func measured(figures []figure) []string {
	var names []string
	for _, p := range peers() {
		if slices.ContainsFunc(figures, func(f figure) bool { return f.Peer == p.name }) {
			names = append(names, p.name)
		}
	}
	return names
}

// cell is a peer's median and, unless the peer is callq, callq's ratio to it.
func cell(callq, values map[int]float64, isCallq bool) string {
	if len(values) == 0 {
		return "-"
	}
	_, middle, _ := ends(values)
	divided := ratios(callq, values)
	if isCallq || len(divided) == 0 {
		return number(middle)
	}
	return number(middle) + "; " + spread(divided, ratio)
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
	least, median, most := ends(values)
	return fmt.Sprintf("%s (%s to %s)", format(median), format(least), format(most))
}

// ends are the least, the median and the most of values, of which there must be one.
func ends(values map[int]float64) (least, median, most float64) {
	sorted := slices.Sorted(maps.Values(values))
	n := len(sorted)
	return sorted[0], (sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[n-1]
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
