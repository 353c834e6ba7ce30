package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each testdata/busted_*.yaml is refused with all of its mistakes, as its .golden says. UPDATE=1
// writes them anew.
func TestBusted(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/busted_*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			_, err := Load(Source{Path: file})
			if err == nil {
				t.Fatal("it was accepted")
			}
			got := err.Error() + "\n"
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if strings.Contains(got, "hunter2") || strings.Contains(got, "ter2") {
				t.Error("it shows a password")
			}
		})
	}
}

func TestBustedEnvironment(t *testing.T) {
	t.Parallel()
	file := "limits: {a-b: {rate: 1/s}, a_b: {rate: 1/s}, c: {rate: 1/s}}\nqueues: {q: {limits: [c]}}\n"
	labels := ""
	for i := range 65 {
		labels += fmt.Sprintf(",l%d", i)
	}
	cases := []struct {
		name       string
		env, flags map[string]string
		want       string
	}{
		{
			"a bad value",
			map[string]string{"CALLQ_WORKER_CONCURRENCY": "many"},
			nil,
			"CALLQ_WORKER_CONCURRENCY: worker.concurrency: \"many\" is not a whole number\n      = allowed: 1..10000",
		},
		{
			"too many labels",
			map[string]string{"CALLQ_WORKER_LABELS": labels[1:]},
			nil,
			"CALLQ_WORKER_LABELS: worker.labels: has 65 labels\n      = allowed: 64 at most",
		},
		{
			"a limit that is not there",
			map[string]string{"CALLQ_QUEUES_Q_LIMITS": "c,d"},
			nil,
			"CALLQ_QUEUES_Q_LIMITS: queues.q.limits: \"d\" is not a limit\n      = allowed: a-b, a_b, c",
		},
		{
			"two limits of one name",
			map[string]string{"CALLQ_LIMITS_A_B_RATE": "2/s"},
			nil,
			"CALLQ_LIMITS_A_B_RATE: limits.a_b.rate: could be limits.a-b.rate or limits.a_b.rate\n      = allowed: names that differ in letters or digits",
		},
		{
			"a common name's",
			map[string]string{"REDIS_URL": "http://u:hunter2@h"},
			nil,
			"REDIS_URL: redis.url: is not a Redis URL: invalid URL scheme\n      = allowed: redis://user:password@host:port/0, rediss:// for TLS, unix:///path/to.sock?db=0; @ : / ? in a password as %40 %3A %2F %3F",
		},
		{
			"both ways to a secret",
			map[string]string{"CALLQ_REDIS_URL": "redis://h", "CALLQ_REDIS_URL_FILE": "x"},
			nil,
			"CALLQ_REDIS_URL_FILE: redis.url_file: is given beside redis.url\n      = allowed: one of them",
		},
		{
			"a flag", nil,
			map[string]string{"redis.url": "redis://h/x"},
			"--redis-url: redis.url: is not a Redis URL: invalid database number\n      = allowed: redis://user:password@host:port/0, rediss:// for TLS, unix:///path/to.sock?db=0; @ : / ? in a password as %40 %3A %2F %3F",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := load("config.yaml", []byte(file), c.env, c.flags)
			if err == nil {
				t.Fatal("it was accepted")
			}
			if diff := cmp.Diff(c.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProblemsAreForPrograms(t *testing.T) {
	t.Parallel()
	_, err := load("config.yaml", []byte("log:\n  level: loud\n"), map[string]string{"CALLQ_WORKER_CONCURRENCY": "0"}, nil)
	all, ok := errors.AsType[*Error](err)
	if !ok || len(all.Problems) != 2 {
		t.Fatalf("got %v", err)
	}
	p := all.Problems[0]
	if p.Source != "config.yaml" || p.Line != 2 || p.Column != 10 || p.Path != "log.level" || p.Allowed != "debug|info|warn|error" {
		t.Errorf("got %+v", p)
	}
}

// Whatever the file and the environment hold, Load answers, a password does not show, and each
// mistake has a place.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/busted_*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, documented) {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, "CALLQ_HTTP_LISTEN", ":0")
	}
	f.Add([]byte("schedule: {dispatch: \"CRON_TZ=UTC\\t0 0 * * *\"}"), "CALLQ_SCHEDULE_VACUUM", "TZ= @every 0s")
	f.Add([]byte("a: &a [*a]\nlimits: &l {x: *l}"), "CALLQ_CALLS_MAX_DATA", "9999999999999999MiB")
	f.Fuzz(func(t *testing.T, text []byte, name, value string) {
		c, err := load("config.yaml", text, map[string]string{name: value}, nil)
		if err == nil {
			if _, ok := c.Queues["default"]; !ok || c.Worker.Concurrency < 1 {
				t.Fatalf("accepted as %+v", c)
			}
			return
		}
		all, ok := errors.AsType[*Error](err)
		if !ok || len(all.Problems) == 0 {
			t.Fatalf("%v says nothing", err)
		}
		lines := len(strings.Split(strings.NewReplacer("\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(string(text)), "\n"))
		for _, p := range all.Problems {
			if p.Message == "" || p.Source == "" || p.Line > lines || p.Source == "config.yaml" && (p.Line < 1 || p.Column < 1) {
				t.Fatalf("a problem without a place: %+v", p)
			}
		}
	})
}
