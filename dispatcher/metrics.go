package dispatcher

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are all metrics of a dispatcher.
type metrics struct {
	claims     *prometheus.CounterVec
	ticks      *prometheus.CounterVec
	tick       prometheus.Histogram
	recoveries *prometheus.CounterVec
	short      *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		claims: f.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_claimed_total", Help: "Attempts claimed, by queue.",
		}, []string{"queue"}),
		ticks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_ticks_total", Help: "Ticks of the dispatch schedule, by result.",
		}, []string{"result"}),
		tick: f.NewHistogram(prometheus.HistogramOpts{
			Name: "callq_tick_seconds", Help: "How long a tick took.",
			Buckets: []float64{.001, .005, .02, .1, .5, 1, 5, 30},
		}),
		recoveries: f.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_recovered_total", Help: "Rows that recovery put right, by kind.",
		}, []string{"kind"}),
		short: f.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_budget_short_total", Help: "Times that calls were left waiting because a budget that their queue needs was short, by budget and queue.",
		}, []string{"budget", "queue"}),
	}
}

func (m *metrics) recovered(kind string, n int) { m.recoveries.WithLabelValues(kind).Add(float64(n)) }
