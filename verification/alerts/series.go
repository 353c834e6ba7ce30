package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/deploy/grafana"
)

// scrape is what the processes of a callq exported at a time.
type scrape struct {
	at     time.Time
	values map[string]float64 // by series: callq_limit_used{limit="api",instance="serve"}
	counts map[string]bool    // the names of counters
}

var sample = regexp.MustCompile(`(?m)^(callq_\w+)(?:\{(.*)\})? (\S+)$|^# TYPE (callq_\w+) counter$`)

// add adds what an instance has answered.
func (s *scrape) add(instance, text string) error {
	for _, m := range sample.FindAllStringSubmatch(text, -1) {
		if m[4] != "" {
			s.counts[m[4]] = true
			continue
		}
		if !inAlerts(m[1]) {
			continue
		}
		value, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return fmt.Errorf("read %q: %w", m[0], err)
		}
		labels := strings.TrimPrefix(m[2]+fmt.Sprintf(",instance=%q", instance), ",")
		s.values[m[1]+"{"+labels+"}"] = value
	}
	return nil
}

// inAlerts reports whether an alert looks at a metric. The others would only take time.
func inAlerts(metric string) bool {
	return slices.ContainsFunc(grafana.Alerts, func(a grafana.Alert) bool { return regexp.MustCompile(metric + `\b`).MatchString(a.Expr) })
}

// name is what comes before the labels.
func name(series string) string {
	before, _, _ := strings.Cut(series, "{")
	return before
}

const (
	wellFor = 10 * time.Minute // the time before the fault
	margin  = 5 * time.Minute
)

var (
	ranged = regexp.MustCompile(`\[(\w+)\]`)
	slope  = regexp.MustCompile(`deriv\((\w+)`)
)

// firesBy is how long after a test's start an alert must have fired: what it looks back over, and its for, later than the fault.
func firesBy(a grafana.Alert) time.Duration {
	back := time.Duration(0)
	for _, m := range ranged.FindAllStringSubmatch(a.Expr, -1) {
		back = max(back, duration(m[1]))
	}
	return wellFor + back + duration(a.For) + margin
}

// duration reads what the table of alerts has. What promtool refuses there, it refuses first.
func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}

// scrapes are two before the fault, and two in it.
type scrapes [4]scrape

// ruleTest is a test of promtool that ends its first ten minutes as the first scrapes differ, is in the fault then, and goes on as
// the last ones differ.
func ruleTest(f fault, of scrapes) string {
	length, grows, all := time.Duration(0), map[string]bool{}, map[string]bool{}
	for _, s := range of {
		maps.Copy(grows, s.counts)
		for series := range s.values {
			all[series] = true
		}
	}
	for _, a := range grafana.Alerts {
		if f.alert == "" || f.alert == a.Name {
			length = max(length, firesBy(a))
			for _, m := range slope.FindAllStringSubmatch(a.Expr, -1) {
				grows[m[1]] = grows[m[1]] || f.alert != ""
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "  - name: %q\n    interval: 1m\n    start_timestamp: %d\n    input_series:\n", f.name, of[3].at.Add(-wellFor).Unix())
	for _, series := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "      - {series: '%s', values: '%s'}\n", series, of.values(series, grows[name(series)], int(length.Minutes())))
	}
	fmt.Fprintf(&b, "    promql_expr_test:\n      - expr: group without (alertstate, severity) (max_over_time(ALERTS{alertstate=\"firing\"}[%s]))\n        eval_time: %[1]s\n        exp_samples:\n", length)
	for _, fired := range f.fires {
		alert, labels, _ := strings.Cut(fired, "{")
		fmt.Fprintf(&b, "          - {labels: '{alertname=%q,%s', value: 1}\n", alert, labels)
	}
	return b.String()
}

// met reports whether any of them has a series of a metric with a label.
func (of scrapes) met(metric, label string) bool {
	return slices.ContainsFunc(of[:], func(s scrape) bool {
		for series := range s.values {
			if name(series) == metric && strings.Contains(series, label) {
				return true
			}
		}
		return false
	})
}

// values are a series' values in promtool's notation, one a minute.
func (of scrapes) values(series string, grows bool, minutes int) string {
	well := int(wellFor.Minutes())
	return of.part(series, 0, grows, well-2, true) + " " + of.part(series, 2, grows, minutes, false)
}

// part is what a series is from one scrape to the next, and n minutes longer, on either side. One that is gone is stale at once,
// as where a scrape lacks it.
func (of scrapes) part(series string, at int, grows bool, n int, before bool) string {
	first, has := of[at].values[series]
	last, stays := of[at+1].values[series]
	step := 0.0
	if grows && (has || before) { // before its first event a counter is 0
		step = last - first
	}
	switch {
	case !has && !stays && at > 0 && of.had(series, at-1):
		return "stale"
	case !has && !stays:
		return fmt.Sprintf("_x%d", n+2)
	case !stays:
		return fmt.Sprintf("%gx%d stale", first, n)
	case before:
		return fmt.Sprintf("%g%+gx%d", last-step*float64(n+1), step, n+1)
	case !has:
		return fmt.Sprintf("_ %gx%d", last, n)
	}
	return fmt.Sprintf("%g%+gx%d", first, step, n+1)
}

func (of scrapes) had(series string, at int) bool {
	_, had := of[at].values[series]
	return had
}
