package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/callq/callq/internal/local"
)

// manager is a package manager, and how this user installs a program's package by it.
type manager struct {
	name    string
	install func(ctx context.Context, program, pkg string) error
}

// managers are those that this machine has, the preferred one first.
func managers() []manager {
	by := func(name string, args ...string) manager {
		return manager{name, func(ctx context.Context, _, pkg string) error { return command(ctx, name, append(args, pkg)...) }}
	}
	all := []manager{by("brew", "install", "-q"), {"apt-get", unpack}}
	if os.Geteuid() == 0 {
		all = []manager{{"apt-get", aptInstall}, by("dnf", "install", "-qy"), by("apk", "add", "-q")}
	}
	var present []manager
	for _, m := range all {
		if _, err := exec.LookPath(m.name); err == nil {
			present = append(present, m)
		}
	}
	return present
}

func aptInstall(ctx context.Context, _, pkg string) error {
	update := command(ctx, "apt-get", "update", "-q") // one dead source among many is no reason to stop
	err := command(ctx, "apt-get", "install", "-qy", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", pkg)
	return because(err, update)
}

// unpack downloads a package and what the system lacks of its dependencies, with package lists and a cache
// of its own, and unpacks them where local.Find looks. It needs no rights.
func unpack(ctx context.Context, program, pkg string) error {
	target := local.Unpacked(program)
	work, err := os.MkdirTemp(filepath.Dir(target), "apt-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	for _, dir := range []string{"lists/partial", "cache/archives/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o700); err != nil {
			return err
		}
	}
	options := []string{
		"-q",
		"-o", "Dir::State::Lists=" + filepath.Join(work, "lists"),
		"-o", "Dir::Cache=" + filepath.Join(work, "cache"),
		"-o", "APT::Sandbox::User=", // there is no other user to drop to
		"-o", "Debug::NoLocking=true", // the system's lock is not ours, and nothing of the system changes
	}
	update := command(ctx, "apt-get", append(options, "update")...) // as above
	if err := command(ctx, "apt-get", append(options, "install", "-y", "--download-only", "--no-install-recommends", pkg)...); err != nil {
		return because(err, update)
	}
	debs, _ := filepath.Glob(filepath.Join(work, "cache/archives/*.deb")) // fails for a bad pattern only
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
