package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/callq/callq/internal/local"
)

// manager is a package manager, and how this user installs a program's package by it.
type manager struct {
	name    string
	install func(ctx context.Context, program, pkg string) error
}

// managers are those that this machine has, the preferred one first. Their lists of packages are brought up to
// date once.
func managers(ctx context.Context) []manager {
	by := func(name string, args ...string) manager {
		return manager{name, func(ctx context.Context, _, pkg string) error { return command(ctx, name, append(args, pkg)...) }}
	}
	all := []manager{by("brew", "install", "-q"), {"apt-get", unpacker(ctx)}}
	if os.Geteuid() == 0 {
		all = []manager{{"apt-get", aptInstaller(ctx)}, by("dnf", "install", "-qy"), by("apk", "add", "-q")}
	}
	var present []manager
	for _, m := range all {
		if _, err := exec.LookPath(m.name); err == nil {
			present = append(present, m)
		}
	}
	return present
}

func aptInstaller(ctx context.Context) func(ctx context.Context, _, pkg string) error {
	update := sync.OnceValue(func() error { return command(ctx, "apt-get", "update", "-q") })
	return func(ctx context.Context, _, pkg string) error {
		outdated := update() // one dead source among many is no reason to stop
		return because(command(ctx, "apt-get", "install", "-qy", "--no-install-recommends",
			"-o", "DPkg::Lock::Timeout=120", pkg), outdated)
	}
}

// unpacker downloads a package and what the system lacks of its dependencies, with package lists and a cache
// of its own, and unpacks them where local.Find looks. It needs no rights.
func unpacker(ctx context.Context) func(ctx context.Context, program, pkg string) error {
	lists := local.Unpacked("apt-lists")
	apt := func(ctx context.Context, cache string, args ...string) error {
		return command(ctx, "apt-get", append([]string{
			"-q",
			"-o", "Dir::State::Lists=" + lists,
			"-o", "Dir::Cache=" + cache,
			"-o", "APT::Sandbox::User=", // there is no other user to drop to
			"-o", "Debug::NoLocking=true", // the system's lock is not ours, and nothing of the system changes
		}, args...)...)
	}
	update := sync.OnceValue(func() error {
		if err := os.MkdirAll(filepath.Join(lists, "partial"), 0o700); err != nil {
			return err
		}
		return apt(ctx, lists, "update")
	})
	return func(ctx context.Context, program, pkg string) error {
		outdated := update()
		target := local.Unpacked(program)
		work, err := os.MkdirTemp(filepath.Dir(target), "apt-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work)
		root := filepath.Join(work, "root")
		for _, dir := range []string{root, filepath.Join(work, "archives", "partial")} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
		}
		if err := apt(ctx, work, "install", "-y", "--download-only", "--no-install-recommends", pkg); err != nil {
			return because(err, outdated)
		}
		debs, _ := filepath.Glob(filepath.Join(work, "archives", "*.deb")) // fails for a bad pattern only
		for _, deb := range debs {
			if err := command(ctx, "dpkg", "-x", deb, root); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(target); err != nil {
			return err
		}
		return os.Rename(root, target)
	}
}

// because adds an earlier failure to err, if there are both.
func because(err, earlier error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, earlier)
}

// command runs a command. Its error carries the end of what the command wrote.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "HOMEBREW_NO_AUTO_UPDATE=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it may be in the middle of an install
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, strings.TrimSpace(string(out[max(0, len(out)-2048):])))
	}
	return nil
}
