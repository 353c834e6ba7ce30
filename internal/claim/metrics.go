package claim

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are all metrics of a Claimer.
type metrics struct {
	claimed *prometheus.CounterVec
	short   *prometheus.CounterVec
	away    *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	f := promauto.With(r)
	return metrics{
		claimed: f.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_claimed_total", Help: "Attempts claimed, by queue.",
		}, []string{"queue"}),
		short: f.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_budget_short_total", Help: "Times that calls were left waiting because a budget that their queue needs was short, by budget and queue.",
		}, []string{"budget", "queue"}),
		away: f.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_budget_claim_outages_total", Help: "Claims that could not ask a budget that their queue needs, by budget and queue.",
		}, []string{"budget", "queue"}),
	}
}
