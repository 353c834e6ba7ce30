package local

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	executable(t, filepath.Join(dir, "9", "bin", "serve-it"), "")
	executable(t, filepath.Join(dir, "15", "bin", "serve-it"), "")
	executable(t, filepath.Join(dir, "15", "bin", "init-it"), "")
	executable(t, filepath.Join(dir, "14", "bin", "serve-it"), "")
	executable(t, filepath.Join(dir, "14", "bin", "init-it"), "")
	executable(t, filepath.Join(dir, "path", "serve-it"), "")
	executable(t, filepath.Join(dir, "path", "init-it"), "")
	want := wanted{
		name: "it", variable: "CALLQ_IT_BIN", binaries: [][]string{{"serve-it", "init-it"}},
		folders: []string{filepath.Join(dir, "*", "bin")},
	}
	for _, test := range []struct {
		name, variable, path, want, err string
	}{
		{name: "the newest version that is whole", want: "15/bin"},
		{name: "PATH before the usual folders", path: "path", want: "path"},
		{name: "the variable before PATH", variable: "14/bin", path: "path", want: "14/bin"},
		{name: "the variable may name the file", variable: "14/bin/serve-it", want: "14/bin"},
		{name: "a wrong variable is an error", variable: "9/bin", err: "CALLQ_IT_BIN"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.variable != "" {
				test.variable = filepath.Join(dir, test.variable)
			}
			t.Setenv("CALLQ_IT_BIN", test.variable)
			t.Setenv("PATH", filepath.Join(dir, test.path))
			p, err := want.find()
			if test.err != "" {
				if err == nil || errors.Is(err, errMissing) || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want one that names %s", err, test.err)
				}
				return
			}
			if err != nil || p.dir != filepath.Join(dir, test.want) {
				t.Errorf("found %q, %v; want %s", p.dir, err, test.want)
			}
		})
	}
}

// The package manager is a stand-in: it takes the options that the real one does and leaves what
// the real one would.
func TestUnpackIntoCache(t *testing.T) {
	commands, cache := t.TempDir(), t.TempDir()
	executable(t, filepath.Join(commands, "apt-get"), `
for arg; do case $arg in Dir::Cache=*) cache=${arg#*=};; esac; last=$arg; done
case "$*" in *--download-only*) : >"$cache/archives/$last.deb";; esac`)
	executable(t, filepath.Join(commands, "dpkg"), `
mkdir -p "$3/usr/bin" "$3/usr/lib/some-linux-gnu"
echo "echo it runs with $LD_LIBRARY_PATH" >"$3/usr/bin/serve-it"
chmod +x "$3/usr/bin/serve-it"`)
	t.Setenv("PATH", commands+":/usr/bin:/bin")
	want := wanted{name: "it", binaries: [][]string{{"serve-it"}}, cache: cache}
	if _, err := want.find(); !errors.Is(err, errMissing) {
		t.Fatalf("before: %v, want %v", err, errMissing)
	}
	if err := unpack(t.Context(), want, "it-server"); err != nil {
		t.Fatal(err)
	}
	p, err := want.find()
	if err != nil || p.dir != filepath.Join(cache, "it", "usr", "bin") {
		t.Fatalf("found %q, %v", p.dir, err)
	}
	if lib := filepath.Join(cache, "it", "usr/lib/some-linux-gnu"); len(p.env) != 1 || p.env[0] != "LD_LIBRARY_PATH="+lib {
		t.Errorf("environment %q, want its libraries in %s", p.env, lib)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "apt-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestInstallOnce(t *testing.T) {
	commands, cache := t.TempDir(), t.TempDir()
	executable(t, filepath.Join(commands, "apt-get"), `
for arg; do case $arg in Dir::Cache=*) cache=${arg#*=};; esac; done
case "$*" in
*install*it-server) echo once >>"$COUNT"; [ -z "$cache" ] || : >"$cache/archives/it.deb"; cp "$0" "$COMMANDS/serve-it";;
*install*) echo "no such package"; exit 100;;
esac`)
	executable(t, filepath.Join(commands, "dpkg"), `mkdir -p "$3/usr/bin"`)
	count := filepath.Join(commands, "count")
	t.Setenv("COUNT", count)
	t.Setenv("COMMANDS", commands)
	t.Setenv("PATH", commands+":/usr/bin:/bin")
	want := wanted{
		name: "it", variable: "CALLQ_IT_BIN", binaries: [][]string{{"serve-it"}}, cache: cache,
		packages: map[string][]string{"apt-get": {"unknown", "it-server"}},
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if p, err := provide(t.Context(), want, slog.New(slog.DiscardHandler)); err != nil || p.dir != commands {
				t.Errorf("provided %q, %v", p.dir, err)
			}
		})
	}
	all.Wait()
	if got, err := os.ReadFile(count); err != nil || string(got) != "once\n" {
		t.Errorf("installed %q, %v; want once", got, err)
	}

	want.name, want.binaries = "other", [][]string{{"serve-other"}}
	want.packages = map[string][]string{"apt-get": {"unknown"}}
	_, err := provide(t.Context(), want, slog.New(slog.DiscardHandler))
	for _, say := range []string{"no such package", "CALLQ_IT_BIN", "looked on PATH"} {
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("error %v does not say %q", err, say)
		}
	}
}

func executable(t *testing.T, path, script string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	writeProgram(t, path, []byte("#!/bin/sh\n"+script+"\n"))
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
