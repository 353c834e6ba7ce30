package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/report"
)

// Two processes with different files: the stricter holds, and every list says who wants what.
func TestProcessesDiffer(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	const quiet = "http: {listen: 'off'}\nlog: {level: error}\n"
	wide, strict, other := w, w, w
	wide.config = quiet + "limits: {api: {rate: 10/1h, slack: 1s}, own: {rate: 1/s}}\nqueues: {pay: {limits: [api]}, mail: {limits: [own]}}\n"
	strict.config = quiet + "limits: {api: {rate: 6/1h, slack: 2s}}\nqueues: {pay: {limits: [api], max_attempts: 7}}\n"
	other.config = quiet + "limits: {api: {concurrency: 4}}\nqueues: {pay: {limits: [api]}}\n"
	limits := func() map[string]report.Limit {
		rows := map[string]report.Limit{}
		for _, l := range decode[[]report.Limit](t, w.do("limits", "list", "-o", "json")) {
			rows[l.Name] = l
		}
		return rows
	}

	wide.start("dispatch")
	eventually(t, "the first publishes", func() bool { return limits()["api"].Units == 10 })
	if l := limits()["api"]; len(l.Wanted) > 0 {
		t.Errorf("one process differs from itself: %+v", l.Wanted)
	}
	d := strict.start("dispatch")
	eventually(t, "the stricter holds", func() bool { return limits()["api"].Units == 6 })

	rules := func(list []dispatcher.Want) (rules []string) {
		for _, want := range list {
			if len(want.By) != 1 {
				t.Errorf("%q is wanted by %q, want one", want.Rule, want.By)
			}
			rules = append(rules, want.Rule)
		}
		return rules
	}
	const first, second = "10 per 1h, sliding window, slack 1s, send_within 5s", "6 per 1h, sliding window, slack 2s, send_within 5s"
	if got := rules(limits()["api"].Wanted); !slices.Equal(got, []string{first, second}) {
		t.Errorf("of api they want %q", got)
	}
	if got := rules(limits()["own"].Wanted); !slices.Equal(got, []string{"1 per 1s, sliding window, slack 500ms, send_within 100ms", "not in its configuration"}) {
		t.Errorf("of own they want %q", got)
	}
	w.do("limits", "set", "api", "3/1h")
	for args, says := range map[string][]string{
		"limits list": {
			"live processes differ on limit api\n", ": " + first + "\n", ": " + second + "\n",
			"in force: 3 per 1h, sliding window, slack 2s, send_within 5s (set; config: 6 per 1h, sliding window)", "limit own\n",
		},
		"limits get api": {"live processes differ on limit api\n", ": " + first + "\n", ": " + second + "\n"},
		"queues list": {
			"live processes differ on queue mail\n", "live processes differ on queue pay\n", "limits [api], max_attempts 3", ": not in its configuration\n",
			"in force: limits [api], max_attempts 7, backoff 10s..15m0s, timeout 30s, on_lost retry\n",
		},
		"status":         {"live processes differ on limit api\n", "live processes differ on limit own\n", "live processes differ on queue pay\n"},
		"status -o json": {`"rule": "not in its configuration"`, `"rule": "` + first + `"`},
	} {
		out := w.do(strings.Fields(args)...)
		for _, text := range says {
			if !strings.Contains(out, text) {
				t.Errorf("callq %s lacks %q:\n%s", args, text, out)
			}
		}
	}
	w.do("limits", "reset", "api")

	if a := other.run("dispatch"); a.code != exitUsage || !strings.Contains(a.stderr, `limit "api" is 10 per 1h, sliding window to `) {
		t.Errorf("a concurrency beside a rate: exit code %d, want 2\n%s", a.code, a.stderr)
	}
	if code := d.end(); code != exitDone {
		t.Errorf("exit code %d\n%s", code, &d.stderr)
	}
	eventually(t, "the first's rules hold again", func() bool { l := limits()["api"]; return l.Units == 10 && len(l.Wanted) == 0 })
	if out := w.do("status"); strings.Contains(out, "differ") {
		t.Errorf("nobody differs any more:\n%s", out)
	}
}

// Two workers with different http_task: status names the keys, what each has, and no secret's value.
func TestWorkersDiffer(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	const quiet = "http: {listen: 'off'}\nlog: {level: error}\n"
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(secretCanary), 0o600); err != nil {
		t.Fatal(err)
	}
	one, other := w, w
	one.config = quiet + "http_task: {hosts: [api.example.com]}\n"
	other.config = quiet + "http_task: {secrets: {KEY: {file: " + key + ", hosts: [api.example.com]}}}\n"
	one.start("work")
	eventually(t, "the first lives", func() bool { return len(decode[report.Status](t, w.do("status", "-o", "json")).Workers) == 1 })
	if out := w.do("status"); strings.Contains(out, "differ") {
		t.Errorf("one worker differs from itself:\n%s", out)
	}
	other.start("work")
	eventually(t, "both live", func() bool { return len(decode[report.Status](t, w.do("status", "-o", "json")).Workers) == 2 })
	out := w.do("status")
	for _, words := range []string{
		"live processes differ on http_task.hosts\n", `: ["api.example.com"]` + "\n", ": []\n",
		"live processes differ on http_task.secrets\n", `: {"KEY": ["api.example.com"]}` + "\n",
	} {
		if !strings.Contains(out, words) {
			t.Errorf("status lacks %q:\n%s", words, out)
		}
	}
	if strings.Contains(out, "http_task.store") || strings.Contains(out, "canary") {
		t.Errorf("status names what is the same, or a secret:\n%s", out)
	}
}
