package dispatcher

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are all metrics of a dispatcher.
type metrics struct {
	ticks      *prometheus.CounterVec
	tick       prometheus.Histogram
	recoveries *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
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
	}
}

func (m *metrics) recovered(kind string, n int) { m.recoveries.WithLabelValues(kind).Add(float64(n)) }
