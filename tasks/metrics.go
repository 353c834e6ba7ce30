package tasks

import (
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are all metrics of a worker.
type metrics struct {
	attempts *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	tooLate  *prometheus.CounterVec

	budgetUnits, budgetRefused, budgetOutages *prometheus.CounterVec
	budgetWait                                *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_attempts_total", Help: "Attempts that ended on this worker, by queue and outcome.",
		}, []string{"queue", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "callq_attempt_seconds", Help: "From a free slot to the recorded end of an attempt.",
			Buckets: []float64{.005, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"queue"}),
		tooLate: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_too_late_total", Help: "Attempts not sent because this worker took longer than send_within, by queue.",
		}, []string{"queue"}),
		budgetUnits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_budget_units_total", Help: "Units that handlers of this worker drew, by budget.",
		}, []string{"budget"}),
		budgetRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_budget_refused_total", Help: "Draws that were refused because units came free too late, by budget.",
		}, []string{"budget"}),
		budgetOutages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_budget_outages_total", Help: "Draws that met no Redis, by budget: they waited, or, with on_outage open, went through uncounted.",
		}, []string{"budget"}),
		budgetWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "callq_budget_wait_seconds", Help: "How long draws waited for their units, by budget.",
			Buckets: []float64{.005, .02, .1, .5, 1, 5, 30, 300},
		}, []string{"budget"}),
	}
	if r != nil {
		r.MustRegister(m.attempts, m.seconds, m.tooLate, m.budgetUnits, m.budgetRefused, m.budgetOutages, m.budgetWait)
	}
	return m
}

// ended counts an attempt whose outcome was recorded.
func (m *metrics) ended(a *attempt, outcome callqueue.Outcome) {
	if a.Queue != "" { // else it ended before anything was known of it
		m.attempts.WithLabelValues(a.Queue, string(outcome)).Inc()
		m.seconds.WithLabelValues(a.Queue).Observe(time.Since(a.begun).Seconds())
	}
	if a.late && len(a.Limits) > 0 {
		m.tooLate.WithLabelValues(a.Queue).Inc()
	}
}
