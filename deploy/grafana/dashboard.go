package grafana

import (
	"encoding/json"
	"strings"
)

// Row is a row of the dashboard. Its panels stand beside each other, as many as fit.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is a plot of lines over time.
type Panel struct {
	Title string
	Unit  string // as Grafana names it
	Width int    // of 24
	Lines []Line
}

// Line is an expression, which may be several lines, and how each is named. A name that ends in Ceiling is drawn as a dashed line.
type Line struct {
	Name, Expr string
}

// Ceiling ends the name of a line that others should stay below.
const Ceiling = " at most"

const (
	perSecond = "ops"
	seconds   = "s"
	number    = "short"
)

// Rows are all rows.
var Rows = []Row{
	{"Limits", []Panel{
		{"Used of each limit", number, 12, []Line{
			{"{{limit}}", `max by (limit) (callq_limit_used{limit=~"$limit"})`},
			{"{{limit}}" + Ceiling, `max by (limit) (callq_limit_units{limit=~"$limit"})`},
		}},
		{"Due calls of each limit's queues", number, 12, []Line{{"{{limit}}", `max by (limit) (callq_limit_waiting_calls{limit=~"$limit"})`}}},
		{"Time until the next unit", seconds, 8, []Line{{"{{limit}}", `max by (limit) (callq_limit_next_unit_seconds{limit=~"$limit"})`}}},
		{"Refused by the API", perSecond, 8, []Line{
			{"{{limit}}", `sum by (limit) (rate(callq_limit_rejections_total{limit=~"$limit"}[$__rate_interval]))`},
		}},
		{"Closed, by cause", number, 8, []Line{{"{{limit}}: {{cause}}", `max by (limit, cause) (callq_limit_closed{limit=~"$limit"}) == 1`}}},
	}},
	{"Queues", []Panel{
		{"Due calls", number, 12, []Line{{"{{queue}}", `max by (queue) (callq_queue_calls{queue=~"$queue", state="due"})`}}},
		{"Started, done and errors", perSecond, 12, []Line{
			{"{{queue}} started", `sum by (queue) (rate(callq_call_wait_seconds_count{queue=~"$queue"}[$__rate_interval]))`},
			{"{{queue}} {{status}}", `sum by (queue, status) (rate(callq_calls_total{queue=~"$queue", status=~"done|error|failed"}[$__rate_interval]))`},
		}},
		{"For how long the oldest due call has waited", seconds, 12, []Line{
			{"{{queue}}", `max by (queue) (callq_queue_oldest_due_seconds{queue=~"$queue"})`},
		}},
		{"From when a call was due to its start", seconds, 12, []Line{
			{"{{queue}} p50", `histogram_quantile(0.5, sum by (queue, le) (rate(callq_call_wait_seconds_bucket{queue=~"$queue"}[$__rate_interval])))`},
			{"{{queue}} p95", `histogram_quantile(0.95, sum by (queue, le) (rate(callq_call_wait_seconds_bucket{queue=~"$queue"}[$__rate_interval])))`},
		}},
	}},
	{"Workers and dispatchers", []Panel{
		{"Alive", number, 8, []Line{
			{"workers", `max(callq_workers_live)`},
			{"dispatchers", `max(callq_dispatchers_live)`},
		}},
		{"Ticks", perSecond, 8, []Line{{"{{result}}", `sum by (result) (rate(callq_ticks_total[$__rate_interval]))`}}},
		{"How long ticks take", seconds, 8, []Line{
			{"p50", `histogram_quantile(0.5, sum by (le) (rate(callq_tick_seconds_bucket[$__rate_interval])))`},
			{"p95", `histogram_quantile(0.95, sum by (le) (rate(callq_tick_seconds_bucket[$__rate_interval])))`},
		}},
		{"Claimed", perSecond, 8, []Line{{"{{queue}}", `sum by (queue) (rate(callq_claimed_total{queue=~"$queue"}[$__rate_interval]))`}}},
		{"Attempts ended, by outcome", perSecond, 8, []Line{
			{"{{outcome}}", `sum by (outcome) (rate(callq_attempts_total{queue=~"$queue"}[$__rate_interval]))`},
		}},
		{"Recovered, by kind", perSecond, 8, []Line{{"{{kind}}", `sum by (kind) (rate(callq_recovered_total[$__rate_interval]))`}}},
	}},
	{"Budgets", []Panel{
		{"Units drawn", perSecond, 8, []Line{{"{{budget}}", `sum by (budget) (rate(callq_budget_units_total[$__rate_interval]))`}}},
		{"How long draws wait, p95", seconds, 8, []Line{
			{"{{budget}}", `histogram_quantile(0.95, sum by (budget, le) (rate(callq_budget_wait_seconds_bucket[$__rate_interval])))`},
		}},
		{"Refused, and without Redis", perSecond, 8, []Line{
			{"{{budget}} refused", `sum by (budget) (rate(callq_budget_refused_total[$__rate_interval]))`},
			{"{{budget}} without Redis", `sum by (budget) (rate(callq_budget_outages_total[$__rate_interval]))`},
			{"{{budget}} without Redis, at the claim", `sum by (budget) (rate(callq_budget_claim_outages_total[$__rate_interval]))`},
		}},
	}},
}

// object is one of JSON. Its keys come sorted.
type object map[string]any

const panelHeight = 8

// Dashboard returns dashboard.json, of the schema that Grafana 11 and 12 read. It has no id, which is
// a Grafana's own; by the uid, an import replaces the dashboard.
func Dashboard() string {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var panels []object
	x, y := 0, 0
	for _, row := range Rows {
		panels = append(panels, object{"id": len(panels) + 1, "type": "row", "title": row.Title, "collapsed": false, "panels": []object{}, "gridPos": grid(24, 1, 0, y)})
		y++
		for _, p := range row.Panels {
			if x+p.Width > 24 {
				x, y = 0, y+panelHeight
			}
			panels = append(panels, object{
				"id": len(panels) + 1, "type": "timeseries", "title": p.Title, "datasource": source, "gridPos": grid(p.Width, panelHeight, x, y),
				"targets": p.targets(source),
				"fieldConfig": object{
					"defaults": object{"unit": p.Unit, "min": 0, "custom": object{"fillOpacity": 5}},
					"overrides": []object{{
						"matcher": object{"id": "byRegexp", "options": "/" + Ceiling + "$/"},
						"properties": []object{
							{"id": "custom.lineStyle", "value": object{"fill": "dash", "dash": []int{8, 8}}},
							{"id": "custom.fillOpacity", "value": 0},
						},
					}},
				},
				"options": object{
					"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []string{}},
					"tooltip": object{"mode": "multi", "sort": "desc"},
				},
			})
			x += p.Width
		}
		x, y = 0, y+panelHeight
	}
	text, err := json.MarshalIndent(object{
		"title": "callq", "uid": "callq-overview", "id": nil, "tags": []string{"callq"}, "schemaVersion": 39, "version": 1,
		"editable": true, "graphTooltip": 1, "refresh": "30s", "timezone": "", "time": object{"from": "now-6h", "to": "now"},
		"annotations": object{"list": []object{}},
		"templating": object{"list": []object{
			{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1},
			variable("limit", "label_values(callq_limit_units, limit)", source),
			variable("queue", "label_values(callq_queue_calls, queue)", source),
		}},
		"panels": panels,
	}, "", "  ")
	if err != nil {
		panic(err) // there is nothing in it but text and numbers
	}
	return string(text) + "\n"
}

func grid(w, h, x, y int) object { return object{"w": w, "h": h, "x": x, "y": y} }

func (p Panel) targets(source object) []object {
	var list []object
	for i, l := range p.Lines {
		list = append(list, object{"refId": string(rune('A' + i)), "datasource": source, "expr": l.Expr, "legendFormat": l.Name})
	}
	return list
}

// variable is one whose value "All" takes also what has no such label.
func variable(name, query string, source object) object {
	return object{
		"name": name, "label": strings.ToUpper(name[:1]) + name[1:], "type": "query", "datasource": source, "definition": query,
		"query": object{"query": query, "refId": "variable"}, "refresh": 2, "sort": 1,
		"multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": []string{"All"}, "value": []string{"$__all"}},
	}
}
