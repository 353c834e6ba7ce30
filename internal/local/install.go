package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// installer is one way to install a package; it does not apply where its commands are missing.
type installer struct {
	manager string
	apply   func(ctx context.Context, w wanted, pkg string) error
}

// installers are the ways open to this user, the one preferred first.
func installers() []installer {
	if os.Geteuid() == 0 {
		return []installer{
			{"apt-get", func(ctx context.Context, _ wanted, pkg string) error {
				update := run(ctx, "apt-get", "update", "-q") // one dead source among many is no reason to stop
				return because(run(ctx, "apt-get", "install", "-qy", "--no-install-recommends",
					"-o", "DPkg::Lock::Timeout=120", pkg), update)
			}},
			{"dnf", func(ctx context.Context, _ wanted, pkg string) error { return run(ctx, "dnf", "install", "-qy", pkg) }},
			{"apk", func(ctx context.Context, _ wanted, pkg string) error { return run(ctx, "apk", "add", "-q", pkg) }},
		}
	}
	return []installer{
		{"brew", func(ctx context.Context, _ wanted, pkg string) error { return run(ctx, "brew", "install", "-q", pkg) }},
		{"apt-get", unpack},
	}
}

// install installs w by the system's package manager, or unpacks it into the user's cache. One
// process does it; others that want the same wait for it.
func install(ctx context.Context, w wanted, log *slog.Logger) (program, error) {
	unlock, err := lockInstalls(ctx, w)
	if err != nil {
		return program{}, fmt.Errorf("install %s: %w", w.name, err)
	}
	defer unlock()
	p, missing := w.find() // another may have installed it meanwhile
	if !errors.Is(missing, errMissing) {
		return p, missing
	}
	tried := []error{missing}
	for _, by := range installers() {
		if _, err := exec.LookPath(by.manager); err != nil {
			tried = append(tried, err)
			continue
		}
		for _, pkg := range w.packages[by.manager] {
			log.InfoContext(ctx, "installing", "package", pkg, "by", by.manager)
			err := by.apply(ctx, w, pkg)
			if err == nil {
				p, err = w.find()
			}
			if err == nil {
				return p, nil
			}
			tried = append(tried, fmt.Errorf("install %s: %w", pkg, err))
		}
	}
	return program{}, fmt.Errorf("%w\ninstall %s (apt: %s), or let %s name the folder of its binaries",
		errors.Join(tried...), w.name, w.packages["apt-get"][0], w.variable)
}

// lockInstalls waits until no other process of this user installs.
func lockInstalls(ctx context.Context, w wanted) (unlock func(), err error) {
	if w.cache == "" {
		return nil, errors.New("no cache folder: set HOME or XDG_CACHE_HOME")
	}
	if err := os.MkdirAll(w.cache, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(w.cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for !tryLock(lock) {
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), lock.Close())
		case <-time.After(pollEvery):
		}
	}
	return func() { _ = lock.Close() }, nil
}

// unpack downloads pkg and what of its dependencies the system lacks, with package lists and a
// cache of its own, and unpacks them below w.unpacked(). It needs no rights.
func unpack(ctx context.Context, w wanted, pkg string) error {
	work, err := os.MkdirTemp(w.cache, "apt-")
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
	apt := func(args ...string) error {
		return run(ctx, "apt-get", append([]string{
			"-q",
			"-o", "Dir::State::Lists=" + filepath.Join(work, "lists"),
			"-o", "Dir::Cache=" + filepath.Join(work, "cache"),
			"-o", "APT::Sandbox::User=", // there is no other user to drop to
			"-o", "Debug::NoLocking=true", // the system's lock is not ours, and nothing of it is changed
		}, args...)...)
	}
	update := apt("update") // one dead source among many is no reason to stop
	if err := apt("install", "-y", "--download-only", "--no-install-recommends", pkg); err != nil {
		return because(err, update)
	}
	debs, _ := filepath.Glob(filepath.Join(work, "cache/archives/*.deb")) // fails on a bad pattern only
	for _, deb := range debs {
		if err := run(ctx, "dpkg", "-x", deb, root); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(w.unpacked()); err != nil {
		return err
	}
	return os.Rename(root, w.unpacked())
}

// because adds an earlier failure to err, if there is one.
func because(err, earlier error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, earlier)
}

// run runs a command; its error carries the last lines it wrote.
func run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "HOMEBREW_NO_AUTO_UPDATE=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it may be in the middle of an install
	cmd.WaitDelay = stopWithin
	out := &tail{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}
