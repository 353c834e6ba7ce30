package tasks

import (
	"net/http"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are all metrics of a worker.
type metrics struct {
	attempts  *prometheus.CounterVec
	calls     *prometheus.CounterVec
	wait      *prometheus.HistogramVec
	run       *prometheus.HistogramVec
	tooLate   *prometheus.CounterVec
	rejected  *prometheus.CounterVec
	malformed *prometheus.CounterVec

	budgetUnits, budgetRefused, budgetOutages, budgetUncounted *prometheus.CounterVec
	budgetWait                                                 *prometheus.HistogramVec
	budgetMultiplier                                           *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	in := promauto.With(r) // nil: none
	count := func(name, help string, labels ...string) *prometheus.CounterVec {
		return in.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	measure := func(name, help, label string, buckets ...float64) *prometheus.HistogramVec {
		return in.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{label})
	}
	return &metrics{
		attempts: count("callq_attempts_total", "Attempts that ended on this worker, by queue and outcome.", "queue", "outcome"),
		calls: count("callq_calls_total", "What attempts of this worker made of their calls, by queue and status: "+
			"done, error (retried), failed (a dead letter), new (waits again).", "queue", "status"),
		wait: measure("callq_call_wait_seconds", "From when a call was due to the start of an attempt of it.", "queue",
			.005, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200),
		run: measure("callq_call_run_seconds", "How long answers to http calls took, or for how long custom handlers ran.", "queue",
			.005, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300),
		rejected:      count("callq_limit_rejections_total", "Answers that refused calls under a limit: 429, and others that say so.", "limit"),
		malformed:     count("callq_malformed_headers_total", "Headers of such answers that say when to come again, and cannot be read."),
		tooLate:       count("callq_too_late_total", "Attempts not sent because this worker took longer than send_within, by queue.", "queue"),
		budgetUnits:   count("callq_budget_units_total", "Units that handlers of this worker drew, by budget.", "budget"),
		budgetRefused: count("callq_budget_refused_total", "Draws that were refused because units came free too late, by budget.", "budget"),
		budgetOutages: count("callq_budget_outages_total",
			"Draws that met no Redis, by budget: they waited, or, with on_outage open, went through uncounted.", "budget"),
		budgetUncounted: count("callq_budget_uncounted_units_total",
			"Units that went through uncounted while Redis was away, of budgets with on_outage open, by budget.", "budget"),
		budgetMultiplier: in.NewGaugeVec(prometheus.GaugeOpts{
			Name: "callq_budget_multiplier", Help: "What part of its rate a budget gives, as handlers have throttled it, by budget.",
		}, []string{"budget"}),
		budgetWait: measure("callq_budget_wait_seconds", "How long draws waited for their units, by budget.", "budget",
			.005, .02, .1, .5, 1, 5, 30, 300),
	}
}

// ended counts an attempt whose outcome was recorded.
func (m *metrics) ended(a *attempt, c *ledger.Closing) {
	if a.Queue != "" { // else it ended before anything was known of it
		m.attempts.WithLabelValues(a.Queue, string(c.Outcome)).Inc()
		m.calls.WithLabelValues(a.Queue, string(c.Status)).Inc()
	}
	if a.started {
		m.wait.WithLabelValues(a.Queue).Observe(max(0, a.From.Sub(a.DueAt)).Seconds())
	}
	if c.Took > 0 {
		m.run.WithLabelValues(a.Queue).Observe(c.Took.Seconds())
	}
	if c.Code == http.StatusTooManyRequests || c.Outcome == callqueue.OutcomeRefused {
		for _, limit := range a.Limits {
			m.rejected.WithLabelValues(limit).Inc()
		}
	}
	if a.late && len(a.Limits) > 0 {
		m.tooLate.WithLabelValues(a.Queue).Inc()
	}
}
