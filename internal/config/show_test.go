package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every value says where it comes from, and shows no password on any of the ways by which one comes in.
func TestValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "redis_url")
	if err := os.WriteFile(secret, []byte("redis://:hunter2@h\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := mustLoad(t, `
postgres:
  url: "postgres://u:${PW}@${H}/d"
  direct_url: host=h password=hunter2
redis: {url_file: `+secret+`}
worker:
  labels: ["${L}", b]
limits:
  a: {rate: 5/s}
  b: {concurrency: 3}
  c: {rate: 5/s, per: key, overrides: {y: 6/s, x: 7/s}}
  d: {rate: [5/s, 6/m]}
  e: {rate: 5/d, algorithm: fixed_window, timezone: Asia/Tokyo}
retention: {done: 36h}
queues: {q: {hours: "Mon-Fri ${T}"}}
`, map[string]string{
		"PW": "hunter2", "H": "h", "L": "l", "T": "09:00-18:00", "CALLQ_HTTP_LISTEN": "[::1]:1", "CALLQ_LIMITS_A_SLACK": "2s",
	}, map[string]string{"postgres.direct_url": "postgres://h/d?password=hunter2"})
	got := map[string]string{}
	for _, v := range c.Values() {
		got[v.Key] = v.Value + " <- " + v.Source
	}
	for key, want := range map[string]string{
		"postgres.url":         "postgres://u:xxxxx@h/d <- config.yaml:3:8",
		"postgres.direct_url":  "postgres://h/d?password=xxxxx <- --postgres-direct-url",
		"redis.url":            "redis://:xxxxx@h <- config.yaml:5:19",
		"redis.url_file":       secret + " <- config.yaml:5:19",
		"worker.labels":        "l, b <- config.yaml:7:11",
		"http.listen":          "[::1]:1 <- CALLQ_HTTP_LISTEN",
		"limits.a.rate":        "5 per 1s, sliding window <- config.yaml:9:13",
		"limits.a.slack":       "2s <- CALLQ_LIMITS_A_SLACK",
		"limits.a.send_within": "",
		"limits.b.concurrency": "3 <- config.yaml:10:20",
		"limits.a.burst":       "",
		"limits.a.overrides":   " <- default",
		"limits.c.overrides":   "x=7/s, y=6/s <- config.yaml:11:39",
		"limits.d.rate":        "5 per 1s, sliding window, 6 per 1m, sliding window <- config.yaml:12:13",
		"limits.e.rate":        "5 per 1d, fixed window, Asia/Tokyo <- config.yaml:13:13",
		"limits.e.timezone":    "Asia/Tokyo <- config.yaml:13:53",
		"retention.done":       "36h <- config.yaml:14:19",
		"retention.failed":     "30d <- default",
		"calls.max_data":       "256KiB <- default",
		"queues.q.hours":       "Mon-Fri 09:00-18:00 <- config.yaml:15:21",
	} {
		if got[key] != want {
			t.Errorf("%s: %s, want %s", key, got[key], want)
		}
	}
	for key, value := range got {
		if strings.Contains(value, "hunter2") {
			t.Errorf("%s shows a password: %s", key, value)
		}
	}
	for _, key := range []string{"limits.a.concurrency", "limits.b.rate"} {
		if value, ok := got[key]; ok {
			t.Errorf("%s is shown: %s", key, value)
		}
	}
	pg := mustLoad(t, "", map[string]string{"PGHOST": "h"}, nil).Values()
	if i := slices.IndexFunc(pg, func(v Value) bool { return v.Key == "postgres.url" }); pg[i].Source != "libpq's PG*" {
		t.Errorf("postgres.url of PG*: %+v", pg[i])
	}
}

func TestChanged(t *testing.T) {
	t.Parallel()
	const file = "limits: {a: {rate: 1/s}}\nqueues: {q: {limits: [a]}}\nworker: {labels: [x]}\n"
	was := mustLoad(t, file, nil, nil)
	for text, want := range map[string][]string{
		file: nil,
		"worker: {labels: [ x ]}\nqueues: {q: {limits: [\"a\"]}}\nlimits: {a: {rate: 1 per 1s}}\n": nil,
		strings.Replace(file, "[a]", "[a], hours: Mon-Wed 09:00-12:00", 1):                         {"queues.q.hours"},
		strings.Replace(file, "1/s", "2/s", 1):                                                     {"limits.a.rate"},
		strings.Replace(file, "[x]", "[]", 1) + "log: {level: warn}\n":                             {"log.level", "worker.labels"},
	} {
		if diff := cmp.Diff(append([]string{}, want...), append([]string{}, Changed(was, mustLoad(t, text, nil, nil))...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}
