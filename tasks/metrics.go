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
	}
	if r != nil {
		r.MustRegister(m.attempts, m.seconds, m.tooLate)
	}
	return m
}

func (m *metrics) ended(queue string, outcome callqueue.Outcome, took time.Duration) {
	m.attempts.WithLabelValues(queue, string(outcome)).Inc()
	m.seconds.WithLabelValues(queue).Observe(took.Seconds())
}
