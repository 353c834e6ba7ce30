package dispatcher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are all metrics of a dispatcher.
type metrics struct {
	claims *prometheus.CounterVec
	ticks  *prometheus.CounterVec
	tick   prometheus.Histogram
	sweeps *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_claimed_total", Help: "Attempts claimed, by queue.",
		}, []string{"queue"}),
		ticks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_ticks_total", Help: "Ticks of the dispatch schedule, by result.",
		}, []string{"result"}),
		tick: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "callq_tick_seconds", Help: "How long a tick took.",
			Buckets: []float64{.001, .005, .02, .1, .5, 1, 5, 30},
		}),
		sweeps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_swept_total", Help: "Rows that sweepers mended, by kind.",
		}, []string{"what"}),
	}
	if r != nil {
		r.MustRegister(m.claims, m.ticks, m.tick, m.sweeps)
	}
	return m
}

func (m *metrics) claimed(queue string, n int) { m.claims.WithLabelValues(queue).Add(float64(n)) }

func (m *metrics) swept(what string, n int) { m.sweeps.WithLabelValues(what).Add(float64(n)) }

func (m *metrics) ticked(took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.ticks.WithLabelValues(result).Inc()
	m.tick.Observe(took.Seconds())
}
