// Package grafana has a dashboard and alerts for callq's metrics. dashboard.json is for Grafana, alerts.yaml for Prometheus.
// Both are written from the tables here by `make docs`; alerts_test.yaml is by hand, and has `make alerts` try every alert.
//
// All processes that dispatch export the same gauges of limits, queues and processes: an expression takes their max. Counters
// are a process's own: it takes their sum.
package grafana

import (
	"fmt"
	"strings"
)

// Alert is a rule of Prometheus. Its section in docs/runbook.md has its name as the heading.
type Alert struct {
	Name     string
	Expr     string
	For      string
	Severity string
	Summary  string // a template: $labels has what Expr keeps
}

// Severities.
const (
	critical = "critical" // look now: nothing is sent, or a limit may have been exceeded
	warning  = "warning"  // look today
)

const runbook = "https://github.com/callq/callq/blob/main/docs/runbook.md"

// Alerts are all alerts, in the order of docs/runbook.md.
var Alerts = []Alert{
	// Limits
	{
		"CallqLimitFull",
		`max by (limit) (avg_over_time(callq_limit_used[15m])) >= 0.9 * max by (limit) (callq_limit_units)
  and max by (limit) (min_over_time(callq_limit_waiting_calls[15m])) > 0`,
		"1h", warning, "Limit {{ $labels.limit }} has been full for an hour, and calls wait for it.",
	},
	{
		"CallqLimitClosed",
		`max by (limit, cause) (callq_limit_closed) == 1
  and on (limit) max by (limit) (callq_limit_waiting_calls) > 0`,
		"30m", warning, "Limit {{ $labels.limit }} is closed ({{ $labels.cause }}), and calls wait for it.",
	},
	{
		"CallqRefused",
		`sum by (limit) (increase(callq_limit_rejections_total[15m])) > 5`,
		"10m", warning, "The API refuses calls under limit {{ $labels.limit }}.",
	},
	// Queues
	{
		"CallqBacklogGrows",
		`max by (queue) (deriv(callq_queue_calls{state="due"}[30m])) * 60 > 1
  and max by (queue) (callq_queue_calls{state="due"}) > 100`,
		"1h", warning, "Queue {{ $labels.queue }} grows by {{ $value | humanize }} calls a minute.",
	},
	{
		"CallqOldestWaits",
		`max by (queue) (callq_queue_oldest_due_seconds) > 3600`,
		"10m", warning, "The oldest due call of queue {{ $labels.queue }} has waited {{ $value | humanizeDuration }}.",
	},
	// Dispatchers and workers
	{
		"CallqDispatchStopped",
		// Only processes that dispatch export the gauges: where the last one has died there are none.
		`max(callq_dispatchers_live) == 0 or absent(callq_gauges_up)`,
		"5m", critical, "No dispatcher is alive: nothing is claimed.",
	},
	{
		// Only in processes that dispatch. Without `or`, there would be no value while no tick has ever succeeded.
		"CallqTicksFail",
		`(sum(increase(callq_ticks_total{result="ok"}[5m])) or vector(0)) == 0
  and on () count(callq_ticks_total) > 0`,
		"5m", critical, "No tick of any dispatcher has succeeded for five minutes.",
	},
	{
		"CallqWorkersMissing",
		`max by (queue) (callq_queue_unhandled_calls{queue!=""}) > 0`,
		"5m", critical, "{{ $value }} due calls of queue {{ $labels.queue }} are handled by no live worker.",
	},
	{
		// Where slow calls keep all workers busy, some are running.
		"CallqWorkersIdle",
		`sum(max by (queue) (min_over_time(callq_queue_calls{state="dispatched"}[5m]))) > 0
  and sum(max by (queue) (max_over_time(callq_queue_calls{state="running"}[5m]))) == 0
  and (sum(increase(callq_attempts_total[5m])) or vector(0)) == 0`,
		"5m", critical, "Attempts are handed over, and no worker starts or ends any.",
	},
	{
		"CallqAttemptsLost",
		// A counter begins with its first event, of which increase() sees nothing.
		`sum(increase(callq_recovered_total{kind="lost"}[15m])) > 0
  or sum(callq_recovered_total{kind="lost"} unless callq_recovered_total{kind="lost"} offset 15m) > 0`,
		"0s", warning, "Attempts were lost: their workers never reported.",
	},
	// Proof and upkeep
	{
		"CallqVerifyFailed",
		`max(callq_verify_problems) > 0`,
		"0s", critical, "callq verify found {{ $value }} problems: a limit may have been exceeded.",
	},
	{
		"CallqVerifyNotRun",
		`time() - max(callq_verify_last_run_timestamp_seconds) > 2 * 86400`,
		"1h", warning, "callq verify last ran {{ $value | humanizeDuration }} ago.",
	},
	{
		"CallqClockOff",
		`abs(callq_clock_ahead_seconds) > 0.5`,
		"10m", warning, "The clocks of Postgres and {{ $labels.instance }} differ by {{ $value | humanizeDuration }}.",
	},
	{
		"CallqRetentionBehind",
		`time() - max(callq_retention_last_success_timestamp_seconds) > 2 * 86400`,
		"1h", warning, "Retention last succeeded {{ $value | humanizeDuration }} ago.",
	},
	{
		"CallqMetricsMissing",
		`callq_gauges_up == 0 or absent(callq_gauges_up)`,
		"5m", critical, "Metrics of limits and queues are missing{{ with $labels.instance }} on {{ . }}{{ end }}: the other alerts may be blind.",
	},
	{
		"CallqBudgetOutage",
		// Where a queue needs the budget, nothing more is claimed, and so nothing more drawn.
		`sum by (budget) (increase(callq_budget_outages_total[5m])) > 0
  or sum by (budget) (increase(callq_budget_claim_outages_total[5m])) > 0`,
		"5m", warning, "Draws on budget {{ $labels.budget }} meet no Redis.",
	},
}

// Rules returns alerts.yaml.
func Rules() string {
	var b strings.Builder
	b.WriteString("# Alerts for callq, written by `make docs` from deploy/grafana/alerts.go.\ngroups:\n  - name: callq\n    rules:\n")
	for _, a := range Alerts {
		expr := strings.ReplaceAll(a.Expr, "\n", "\n          ")
		fmt.Fprintf(&b, `      - alert: %s
        expr: |-
          %s
        for: %s
        labels:
          severity: %s
        annotations:
          summary: '%s'
          runbook_url: %s#%s
`, a.Name, expr, a.For, a.Severity, a.Summary, runbook, strings.ToLower(a.Name))
	}
	return b.String()
}
