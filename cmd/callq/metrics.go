package main

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/schema"
)

// daemonMetrics are of the process itself.
type daemonMetrics struct {
	reloads *prometheus.CounterVec
	inForce prometheus.Gauge
}

func newDaemonMetrics(r prometheus.Registerer) *daemonMetrics {
	in := promauto.With(r)
	in.NewGaugeVec(prometheus.GaugeOpts{Name: "callq_build_info", Help: "1, with the version of this program."},
		[]string{"version", "go"}).WithLabelValues(programVersion(), runtime.Version()).Set(1)
	m := &daemonMetrics{
		reloads: in.NewCounterVec(prometheus.CounterOpts{
			Name: "callq_reloads_total", Help: "Reloads of the configuration (SIGHUP), by result: ok, error.",
		}, []string{"result"}),
		inForce: in.NewGauge(prometheus.GaugeOpts{
			Name: "callq_reload_successful", Help: "1 if the last reload was taken, or none was asked for; 0 if its file was bad.",
		}),
	}
	m.inForce.Set(1)
	return m
}

func (m *daemonMetrics) reloaded(err error) {
	result, inForce := "ok", 1.0
	if err != nil {
		result, inForce = "error", 0
	}
	m.reloads.WithLabelValues(result).Inc()
	m.inForce.Set(inForce)
}

// gauges reads limits and queues from Postgres for each scrape. While Postgres is away they are missing, and callq_gauges_up is 0.
type gauges struct {
	db  schema.DB
	log *slog.Logger

	mu   sync.Mutex // scrapes that come together share a reading
	at   time.Time
	last *admin.Gauges
}

const (
	gaugesWithin = 5 * time.Second
	gaugesEvery  = time.Second
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// gaugeDescs are the gauges of gauges.
type gaugeDescs struct {
	up, units, used, doubt, waiting, next, closed, calls, oldest *prometheus.Desc
	remoteLimit, remoteRemaining, lowered, routed                *prometheus.Desc
	sharePart, shareUsed, shareWaiting                           *prometheus.Desc
	unhandled, workers, dispatchers, clock, retention            *prometheus.Desc
	verifyProblems, verifyRun                                    *prometheus.Desc
}

func newGaugeDescs() gaugeDescs {
	return gaugeDescs{
		up:              describe("callq_gauges_up", "1 if Postgres answered for the gauges of limits and queues."),
		units:           describe("callq_limit_units", "Units that a limit has in all; of one per key, a key's.", "limit"),
		used:            describe("callq_limit_used", "Units of a limit that are occupied; of one per key, by the fullest key with an open attempt.", "limit"),
		doubt:           describe("callq_limit_in_doubt", "Of callq_limit_used, units of requests without an answer that may still arrive.", "limit"),
		waiting:         describe("callq_limit_waiting_calls", "Due calls in the queues of a limit.", "limit"),
		next:            describe("callq_limit_next_unit_seconds", "Seconds until a unit is free: 0 if one is, NaN if unknown, +Inf if paused.", "limit"),
		closed:          describe("callq_limit_closed", "1 if the limit is closed by this cause: "+strings.Join(admin.Causes, ", ")+".", "limit", "cause"),
		remoteLimit:     describe("callq_limit_remote_limit", "Units that the API says its limit has; none where it does not say, or the limit is per key.", "limit"),
		remoteRemaining: describe("callq_limit_remote_remaining", "Units that the API says it has left; none likewise, or once they were reset.", "limit"),
		lowered:         describe("callq_limit_lowered_units", "Units that may be used until the API resets its limit, where less remains of that than callq counts.", "limit"),
		calls:           describe("callq_queue_calls", "Calls that have not ended, by queue and state: due, scheduled, dispatched, running.", "queue", "state"),
		routed:          describe("callq_route_calls", "Calls that a rule has moved (or changed), discarded, or failed to change, since it was first applied.", "rule", "outcome"),
		sharePart:       describe("callq_limit_share_part", "The part of a limit that a share is guaranteed, from 0 to 1.", "limit", "share"),
		shareUsed:       describe("callq_limit_share_used", "Units of a limit that calls of a share have that are open, or ended within the last minute.", "limit", "share"),
		shareWaiting:    describe("callq_limit_share_waiting_calls", "Due calls of a share of a limit.", "limit", "share"),
		unhandled:       describe("callq_queue_unhandled_calls", "Due calls of a queue that no live worker handles.", "queue"),
		workers:         describe("callq_workers_live", "Workers that are alive."),
		dispatchers:     describe("callq_dispatchers_live", "Dispatchers that are alive."),
		clock:           describe("callq_clock_ahead_seconds", "By how much Postgres's clock is ahead of this machine's, give or take half a round trip."),
		retention:       describe("callq_retention_last_success_timestamp_seconds", "When retention last ended without an error; before that, when callq was set up."),
		verifyProblems:  describe("callq_verify_problems", "Problems that the last run of schedule.verify found, on whichever dispatcher; absent before the first run."),
		verifyRun:       describe("callq_verify_last_run_timestamp_seconds", "When the last run of schedule.verify that came to its end began, in Unix seconds."),
		oldest:          describe("callq_queue_oldest_due_seconds", "For how long the oldest due call has waited, about.", "queue"),
	}
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(to chan<- *prometheus.Desc) {
	d := newGaugeDescs()
	for _, desc := range []*prometheus.Desc{d.up, d.units, d.used, d.doubt, d.waiting, d.next, d.closed, d.calls, d.oldest, d.remoteLimit, d.remoteRemaining, d.lowered, d.routed, d.sharePart, d.shareUsed, d.shareWaiting, d.unhandled, d.workers, d.dispatchers, d.clock, d.retention, d.verifyProblems, d.verifyRun} {
		to <- desc
	}
}

// Collect implements [prometheus.Collector].
func (g *gauges) Collect(to chan<- prometheus.Metric) {
	d := newGaugeDescs()
	set := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	read := g.read()
	if read == nil {
		set(d.up, 0)
		return
	}
	set(d.up, 1)
	set(d.workers, float64(read.Workers))
	set(d.dispatchers, float64(read.Dispatchers))
	set(d.clock, read.ClockAhead)
	if read.Retention != nil {
		set(d.retention, *read.Retention)
	}
	for _, l := range read.Limits {
		set(d.units, float64(l.Units), l.Name)
		set(d.used, float64(l.Used), l.Name)
		set(d.doubt, float64(l.InDoubt), l.Name)
		set(d.waiting, float64(l.Waiting), l.Name)
		set(d.next, l.NextUnit, l.Name)
		for desc, units := range map[*prometheus.Desc]*int64{
			d.remoteLimit: l.Remote.RemoteLimit, d.remoteRemaining: l.Remote.RemoteRemaining, d.lowered: l.Remote.Lowered,
		} {
			if units != nil {
				set(desc, float64(*units), l.Name)
			}
		}
		for _, s := range l.Shares {
			set(d.sharePart, s.Percent/100, l.Name, s.Name)
			set(d.shareUsed, float64(s.Used), l.Name, s.Name)
			set(d.shareWaiting, float64(s.Waiting), l.Name, s.Name)
		}
		for _, cause := range admin.Causes {
			closed := 0.0
			if l.Closed == cause {
				closed = 1
			}
			set(d.closed, closed, l.Name, cause)
		}
	}
	for _, q := range read.Queues {
		for state, n := range map[string]int64{"due": q.Due, "scheduled": q.Scheduled, "dispatched": q.Dispatched, "running": q.Running} {
			set(d.calls, float64(n), q.Name, state)
		}
		set(d.oldest, q.OldestDue, q.Name)
		set(d.unhandled, float64(q.Unhandled), q.Name)
	}
	if v := read.Verified; v != nil {
		set(d.verifyProblems, float64(v.Problems))
		set(d.verifyRun, float64(v.At.UnixMilli())/1000)
	}
	for _, r := range read.Routes {
		for outcome, n := range map[string]int64{"moved": r.Moved, "discarded": r.Discarded, "failed": r.Failed} {
			set(d.routed, float64(n), r.Rule, outcome)
		}
	}
}

// read is nil while Postgres is away.
func (g *gauges) read() *admin.Gauges {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.at) < gaugesEvery {
		return g.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), gaugesWithin)
	defer cancel()
	read, err := admin.ReadGauges(ctx, g.db)
	if err != nil {
		g.log.DebugContext(ctx, "gauges not read", "err", err)
		read = nil
	}
	g.last, g.at = read, time.Now()
	return read
}
