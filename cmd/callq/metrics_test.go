package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/config"
)

var (
	descText  = regexp.MustCompile(`fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"),.* variableLabels: \{(.*?)\}`)
	tableText = regexp.MustCompile(`(?m)^\| metric \| labels \| meaning \|\n\| --- \| --- \| --- \|\n((?:\|.*\n)*)`)
)

// The table of metrics in docs/operating.md is what a daemon registers. UPDATE=1 writes it anew.
func TestMetricsTable(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "host=/nowhere")
	must(t, err)
	defer pool.Close()
	registry, cfg := prometheus.NewRegistry(), config.Default()
	s := servers{pool: pool, redis: redis.NewClient(&redis.Options{}), log: slog.New(slog.DiscardHandler), metrics: registry}
	newDaemonMetrics(registry)
	registry.MustRegister(&gauges{db: pool, log: s.log})
	_, err = makeParts(cfg, s, roles{dispatcher: true, worker: true}, &reloader{})
	must(t, err)

	descs := make(chan *prometheus.Desc)
	go func() { registry.Describe(descs); close(descs) }()
	var rows []string
	for desc := range descs {
		found := descText.FindStringSubmatch(desc.String())
		var name, help string
		if found == nil || json.Unmarshal([]byte(found[1]), &name) != nil || json.Unmarshal([]byte(found[2]), &help) != nil || !strings.HasSuffix(help, ".") {
			t.Fatalf("%s: not understood, or its help is no sentence", desc)
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", name, strings.ReplaceAll(found[3], ",", ", "), help))
	}
	slices.Sort(rows)
	const file = "../../docs/operating.md"
	text, err := os.ReadFile(file)
	must(t, err)
	at := tableText.FindSubmatchIndex(text)
	if want := strings.Join(rows, ""); os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(file, []byte(string(text[:at[2]])+want+string(text[at[3]:])), 0o600))
	} else if diff := cmp.Diff(want, string(text[at[2]:at[3]])); diff != "" {
		t.Errorf("the table is not of today; `make docs` writes it (-want +got):\n%s", diff)
	}
}

// The gauges say how full limits are and what queues hold, and workers count answers 429.
func TestGauges(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort + `limits: {api: {rate: 3/1h}, idle: {rate: 5/s, per: key}, off: {rate: 1/s, hosts: [example.com]}, one: {concurrency: 4}}
queues: {pay: {limits: [api, one], max_attempts: 1, on_refused: retry}, off: {limits: [off]}, keyed: {limits: [idle]}}
`
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }))
	defer busy.Close()
	for range 3 {
		w.call(busy.URL, "--queue", "pay")
	}
	d := w.start("serve")
	address := addressIn(t, &d.stderr)
	awaitReady(t, address)
	shows := func(lines ...string) {
		t.Helper()
		eventually(t, "metrics "+strings.Join(lines, "; "), func() bool {
			_, body := ask(t, address, "/metrics")
			return !slices.ContainsFunc(lines, func(line string) bool { return !strings.Contains("\n"+body, "\n"+line) })
		})
	}
	shows(`callq_limit_rejections_total{limit="api"} 3`, `callq_limit_rejections_total{limit="one"} 3`, `callq_limit_used{limit="api"} 3`,
		`callq_calls_total{queue="pay",status="failed"} 3`, `callq_call_wait_seconds_count{queue="pay"} 3`, `callq_call_run_seconds_count{queue="pay"} 3`,
		`callq_build_info{`, `callq_reload_successful 1`, `callq_gauges_up 1`)
	w.call(busy.URL, "--queue", "pay")
	w.call(busy.URL, "--queue", "pay")
	w.call(busy.URL, "--queue", "pay", "--in", "1h")
	w.do("enqueue", "nobodys", "--queue", "off")
	w.do("maintain", "retention")
	w.do("limits", "pause", "off", "--reason", "test")
	w.do("enqueue", "--queue", "nowhere")
	w.exec(`INSERT INTO callq.call_remotes (limit_name, most, remaining, reset_at, answered_at, lowered) VALUES ('api', 9, 0, now() + interval '1 h', now(), 2)`)
	w.exec(`INSERT INTO callq.call_meta (name, position, at) VALUES ('verified', 2, to_timestamp(1800000000.5))`)
	shows(`callq_verify_problems 2`, `callq_verify_last_run_timestamp_seconds 1.8000000005e+09`)
	shows(`callq_limit_remote_limit{limit="api"} 9`, `callq_limit_remote_remaining{limit="api"} 0`, `callq_limit_lowered_units{limit="api"} 2`)
	shows(`callq_limit_waiting_calls{limit="api"} 2`, `callq_limit_units{limit="api"} 3`, `callq_limit_next_unit_seconds{limit="api"} 3`,
		`callq_limit_next_unit_seconds{limit="one"} 0`, `callq_limit_next_unit_seconds{limit="off"} +Inf`, `callq_limit_used{limit="idle"} 0`,
		`callq_limit_closed{cause="paused",limit="off"} 1`, `callq_limit_closed{cause="paused",limit="api"} 0`,
		`callq_queue_calls{queue="pay",state="due"} 2`, `callq_queue_calls{queue="pay",state="scheduled"} 1`, `callq_queue_calls{queue="",state="due"} 1`,
		`callq_queue_unhandled_calls{queue="off"} 1`, `callq_queue_unhandled_calls{queue="pay"} 0`, `callq_queue_oldest_due_seconds{queue="keyed"} 0`,
		`callq_workers_live 1`, `callq_dispatchers_live 1`, `callq_retention_last_success_timestamp_seconds `)
	_, body := ask(t, address, "/metrics")
	ahead := regexp.MustCompile(`(?m)^callq_clock_ahead_seconds (\S+)$`).FindStringSubmatch(body)
	if by, err := strconv.ParseFloat(ahead[1], 64); err != nil || math.Abs(by) > 0.5 {
		t.Errorf("Postgres's clock, of this machine, is ahead by %s s", ahead[1])
	}
	// What `promtool check metrics` says.
	problems, err := promlint.New(strings.NewReader(body + "\n")).Lint() // ask trims it
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
