package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	dir := t.TempDir()
	t.Setenv("OUT", out)
	for _, test := range []struct {
		name, script string
		want         int
	}{
		{"the exit code is passed on", `exit 7`, 7},
		{"a signal ends the command", `kill -KILL $$`, 128 + 9},
		{
			"a signal is passed on",
			`trap "exit 9" TERM; kill -TERM $PPID; for i in $(seq 1200); do sleep 0.05; done`, 9,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, err := run(dir, []string{"sh", "-c", `echo "$TEST_DATABASE_URL $TEST_REDIS_URL $PWD" >"$OUT"; ` + test.script})
			if code != test.want || err != nil {
				t.Errorf("exit code %d, %v; want %d", code, err, test.want)
			}
			data, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Fields(string(data))
			if len(got) != 3 || !strings.HasPrefix(got[0], "postgres://") || !strings.HasPrefix(got[1], "unix://") || got[2] != dir {
				t.Fatalf("two URLs and the folder %q, want them with %s", got, dir)
			}
			if _, err := os.Stat(filepath.Dir(strings.TrimPrefix(got[1], "unix://"))); err == nil {
				t.Error("the folder is left")
			}
		})
	}
	if code, err := run("", []string{filepath.Join(t.TempDir(), "none")}); code != 127 || err == nil {
		t.Errorf("no such command: exit code %d, %v", code, err)
	}
}
