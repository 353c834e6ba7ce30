package local

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	unpacked := filepath.Join("callq", "it", "usr", "lib", "postgresql")
	for _, path := range []string{
		unpacked + "/9/bin/serve-it", unpacked + "/15/bin/serve-it", unpacked + "/15/bin/init-it",
		unpacked + "/14/bin/serve-it", unpacked + "/14/bin/init-it", "path/serve-it", "path/init-it",
	} {
		executable(t, filepath.Join(dir, path))
	}
	t.Setenv("XDG_CACHE_HOME", dir)
	for _, test := range []struct{ name, path, want string }{
		{name: "the newest version that is whole", want: unpacked + "/15/bin"},
		{name: "PATH before the usual folders", path: "path", want: "path"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("PATH", filepath.Join(dir, test.path))
			p, err := Find("it", []string{"serve-it", "init-it"})
			if err != nil || p.Dir != filepath.Join(dir, test.want) {
				t.Errorf("found %q, %v; want %s", p.Dir, err, test.want)
			}
		})
	}
	if _, err := Find("it", []string{"other"}); !errors.Is(err, ErrMissing) {
		t.Errorf("a program that is missing: %v", err)
	}
}

// What to type is said where a program is missing.
func TestHint(t *testing.T) {
	t.Parallel()
	err := hint(ErrMissing, "it-server", "it")
	for _, want := range []string{"make deps", "apt-get install it-server", "brew install it"} {
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func executable(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	writeProgram(t, path, []byte("#!/bin/sh\n"))
}

// writeProgram lets no other test fork meanwhile: its child would have the file open for writing until it
// runs something else, and what is being written cannot be run (golang.org/issue/22315).
func writeProgram(t *testing.T, path string, program []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
}
