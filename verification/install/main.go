// Install installs the programs that demo and the tests need, where they are missing:
//
//	go run -C verification ./install [postgres|redis|pgbouncer|faketime...]
//
// Without arguments it installs all of them. Root installs into the system, by its package manager. Another
// user installs by Homebrew, or has apt-get download packages and unpacks them into the user's cache, where
// internal/local finds them.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/callq/callq/internal/local"
)

// program is what may be installed.
type program struct {
	name     string
	find     func() (local.Program, error)
	packages map[string][]string // package manager: any of these packages will do
}

func programs() []program {
	find := func(name string) func() (local.Program, error) {
		return func() (local.Program, error) { return local.Find(name, []string{name}) }
	}
	return []program{
		{"postgres", local.FindPostgres, map[string][]string{
			"apt-get": {"postgresql"}, "dnf": {"postgresql-server"}, "apk": {"postgresql"}, "brew": {"postgresql@17"},
		}},
		{"redis", local.FindRedis, map[string][]string{
			"apt-get": {"redis-server", "valkey-server"}, "dnf": {"redis", "valkey"}, "apk": {"redis", "valkey"}, "brew": {"redis"},
		}},
		{"pgbouncer", find("pgbouncer"), map[string][]string{
			"apt-get": {"pgbouncer"}, "dnf": {"pgbouncer"}, "apk": {"pgbouncer"}, "brew": {"pgbouncer"},
		}},
		{"faketime", find("faketime"), map[string][]string{
			"apt-get": {"faketime"}, "dnf": {"libfaketime"}, "apk": {"libfaketime"}, "brew": {"libfaketime"},
		}},
	}
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(ctx, log, programs(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "install:", err)
		os.Exit(1)
	}
}

// run installs those of the named programs, or of all, that are missing.
func run(ctx context.Context, log *slog.Logger, known []program, names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(known, func(p program) bool { return p.name == name }) {
			return fmt.Errorf("%q is no program that it can install", name)
		}
	}
	var missing []program
	for _, p := range known {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		if _, err := p.find(); errors.Is(err, local.ErrMissing) {
			missing = append(missing, p)
		} else if err != nil {
			return err
		}
	}
	if len(missing) == 0 {
		return nil
	}
	unlock, err := lock(ctx)
	if err != nil {
		return fmt.Errorf("install %s: %w", missing[0].name, err)
	}
	defer unlock()
	by := managers(ctx)
	for _, p := range missing {
		if err := p.install(ctx, log, by); err != nil {
			return err
		}
	}
	return nil
}

// install installs the program, unless another process has installed it meanwhile.
func (p program) install(ctx context.Context, log *slog.Logger, managers []manager) error {
	_, missing := p.find()
	if !errors.Is(missing, local.ErrMissing) {
		return missing
	}
	tried := []error{missing}
	for _, by := range managers {
		for _, pkg := range p.packages[by.name] {
			log.InfoContext(ctx, "installing", "package", pkg, "by", by.name)
			err := by.install(ctx, p.name, pkg)
			if err == nil {
				_, err = p.find()
			}
			if err == nil {
				return nil
			}
			tried = append(tried, fmt.Errorf("install %s: %w", pkg, err))
		}
	}
	return errors.Join(tried...)
}

// lock waits until no other process of this user installs.
func lock(ctx context.Context) (unlock func(), err error) {
	if local.Unpacked("any") == "" {
		return nil, errors.New("no cache folder: set HOME or XDG_CACHE_HOME")
	}
	cache := filepath.Dir(local.Unpacked("any"))
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return func() { _ = file.Close() }, nil
}
