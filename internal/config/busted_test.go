package config

import (
	"errors"
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
	redisURLs := "\n      = allowed: " + ruleOf("redis").allowed
	for _, c := range []struct{ name, value, want string }{
		{"CALLQ_WORKER_CONCURRENCY", "many", "worker.concurrency: \"many\" is not a whole number\n      = allowed: 1..10000"},
		{"CALLQ_QUEUES_Q_LIMITS", "c,d", "queues.q.limits: \"d\" is not a limit\n      = allowed: a-b, a_b, c"},
		{"REDIS_URL", "http://u:hunter2@h", "redis.url: is not a Redis URL" + redisURLs},
		{"--redis-url", "redis://h/x", "redis.url: is not a Redis URL" + redisURLs},
		{"CALLQ_REDIS_URL_FILE", "x", "redis.url_file: is given beside redis.url\n      = allowed: one of them"},
	} {
		env, flags := map[string]string{c.name: c.value}, map[string]string{}
		switch c.name {
		case "--redis-url":
			flags["redis.url"] = c.value
		case "CALLQ_REDIS_URL_FILE":
			env["CALLQ_REDIS_URL"] = "redis://h"
		}
		_, err := load("config.yaml", []byte(file), env, flags)
		if err == nil || err.Error() != c.name+": "+c.want {
			t.Errorf("%s=%s: error %v, want %s", c.name, c.value, err, c.want)
		}
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

func TestHugeFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	for size, want := range map[int]string{maxSize: "", maxSize + 1: "config.yaml: cannot be read: it has 1048577 bytes, more than 1048576"} {
		if err := os.WriteFile(file, []byte(strings.Repeat("#", size)), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(Source{Path: file})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("a file of %d bytes: %v", size, err)
		}
	}
}
