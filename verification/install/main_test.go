package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/callq/callq/internal/local"
)

// it is a program, serve-it, in the package it-server.
func it() program {
	return program{
		"it", func() (local.Program, error) { return local.Find("it", []string{"serve-it"}) },
		map[string][]string{"apt-get": {"unknown", "it-server"}},
	}
}

// standIn puts stand-ins for the package manager's commands on PATH, and an empty cache.
func standIn(t *testing.T, aptGet, dpkg string) (commands, cache string) {
	t.Helper()
	commands, cache = t.TempDir(), t.TempDir()
	for name, script := range map[string]string{"apt-get": aptGet, "dpkg": dpkg} {
		if err := os.WriteFile(filepath.Join(commands, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", commands+":/usr/bin:/bin")
	t.Setenv("XDG_CACHE_HOME", cache)
	return commands, filepath.Join(cache, "callq")
}

// The package manager takes the options that the real one does, and leaves what the real one would.
func TestUnpackIntoCache(t *testing.T) {
	_, cache := standIn(t, `
for arg; do case $arg in Dir::Cache=*) cache=${arg#*=};; esac; last=$arg; done
case "$*" in *--download-only*) : >"$cache/archives/$last.deb";; esac`, `
mkdir -p "$3/usr/bin" "$3/usr/lib/some-linux-gnu"
echo "echo it runs" >"$3/usr/bin/serve-it"
chmod +x "$3/usr/bin/serve-it"`)
	unlock, err := lock(t.Context()) // it also makes the cache
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := unpacker(t.Context())(t.Context(), "it", "it-server"); err != nil {
		t.Fatal(err)
	}
	p, err := it().find()
	if err != nil || p.Dir != filepath.Join(cache, "it", "usr", "bin") {
		t.Fatalf("found %q, %v", p.Dir, err)
	}
	if lib := filepath.Join(cache, "it", "usr/lib/some-linux-gnu"); len(p.Env) != 1 || p.Env[0] != "LD_LIBRARY_PATH="+lib {
		t.Errorf("environment %q, want its libraries in %s", p.Env, lib)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "apt-[0-9]*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestInstallOnce(t *testing.T) {
	commands, _ := standIn(t, `
for arg; do case $arg in Dir::Cache=*) cache=${arg#*=};; esac; done
case "$*" in
*install*it-server) echo once >>"$COUNT"; [ -z "$cache" ] || : >"$cache/archives/it.deb"; cp "$0" "$COMMANDS/serve-it";;
*install*) echo "no such package"; exit 100;;
esac`, `mkdir -p "$3/usr/bin"`)
	count := filepath.Join(commands, "count")
	t.Setenv("COUNT", count)
	t.Setenv("COMMANDS", commands)
	other := it()
	other.name = "other"
	other.find = func() (local.Program, error) { return local.Find("other", []string{"serve-other"}) }
	known := []program{it(), other}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := run(t.Context(), slog.New(slog.DiscardHandler), known, []string{"it"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got, err := os.ReadFile(count); err != nil || string(got) != "once\n" {
		t.Errorf("installed %q, %v; want once", got, err)
	}

	err := run(t.Context(), slog.New(slog.DiscardHandler), known, nil)
	for _, want := range []string{"no such package", "looked on PATH"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if err := run(t.Context(), slog.New(slog.DiscardHandler), known, []string{"neither"}); err == nil || !strings.Contains(err.Error(), "neither") {
		t.Errorf("a program that is not known: %v", err)
	}
}
