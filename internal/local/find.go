package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

var errMissing = errors.New("not installed")

// wanted is a server that is to be found or installed. It is looked for in the folder that the
// environment variable names (and then nowhere else), on PATH, in the folders where systems and
// Homebrew put it (the newest version first), and in the user's cache, where install puts it when
// it may not install into the system.
type wanted struct {
	name     string              // also the cache's folder
	variable string              // of the environment
	binaries [][]string          // any of these sets will do; a set stands in one folder
	folders  []string            // glob patterns
	packages map[string][]string // package manager: any of these packages will do
	cache    string              // the user's cache folder, empty if there is none
}

// program is a server that was found.
type program struct {
	dir   string
	first string   // the first binary of the set that was found
	env   []string // on top of this process's
}

func (p program) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, name), args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Env = append(cmd.Env, p.env...)
	return cmd
}

func postgresWanted() wanted {
	return wanted{
		name:     "postgres",
		variable: "CALLQ_POSTGRES_BIN",
		binaries: [][]string{{"postgres", "initdb"}},
		folders: []string{
			"/usr/lib/postgresql/*/bin", "/usr/lib/postgresql*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*",
			"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
			"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
		},
		packages: map[string][]string{
			"apt-get": {"postgresql"}, "dnf": {"postgresql-server"}, "apk": {"postgresql"}, "brew": {"postgresql@17"},
		},
		cache: cacheFolder(),
	}
}

func redisWanted() wanted {
	return wanted{
		name:     "redis",
		variable: "CALLQ_REDIS_BIN",
		binaries: [][]string{{"redis-server"}, {"valkey-server"}},
		folders: []string{
			"/usr/sbin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/home/linuxbrew/.linuxbrew/bin",
		},
		packages: map[string][]string{
			"apt-get": {"redis-server", "valkey-server"}, "dnf": {"redis", "valkey"}, "apk": {"redis", "valkey"}, "brew": {"redis"},
		},
		cache: cacheFolder(),
	}
}

// cacheFolder is where callq unpacks servers: $XDG_CACHE_HOME/callq, or what the system has instead.
func cacheFolder() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "callq")
}

// provide finds w, and installs it where it is missing.
func provide(ctx context.Context, w wanted, log *slog.Logger) (program, error) {
	p, err := w.find()
	if !errors.Is(err, errMissing) {
		return p, err
	}
	return install(ctx, w, logger(log))
}

// find returns errMissing, with where it looked, if w is not there.
func (w wanted) find() (program, error) {
	if path := os.Getenv(w.variable); path != "" {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			path = filepath.Dir(path)
		}
		if p, ok := w.in(path); ok {
			return p, nil
		}
		return program{}, fmt.Errorf("%s=%s: no %s there", w.variable, path, strings.Join(w.binaries[0], " and "))
	}
	for _, set := range w.binaries {
		path, err := exec.LookPath(set[0])
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Base(real) == set[0] {
			path = real // Debian's links stand in /usr/bin, without their company
		}
		if p, ok := w.in(filepath.Dir(path)); ok {
			return p, nil
		}
	}
	folders := w.folders
	if w.cache != "" {
		root := w.unpacked()
		folders = slices.Concat(folders, []string{root + "/usr/lib/postgresql/*/bin", root + "/usr/bin"})
	}
	for _, pattern := range folders {
		found, _ := filepath.Glob(pattern) // fails on a bad pattern only
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
		for _, dir := range found {
			if p, ok := w.in(dir); ok {
				return p, nil
			}
		}
	}
	return program{}, fmt.Errorf("%s: %w (looked on PATH and in %s)", w.name, errMissing, strings.Join(folders, ", "))
}

// in returns what of w stands in dir.
func (w wanted) in(dir string) (program, bool) {
	for _, set := range w.binaries {
		missing := slices.ContainsFunc(set, func(name string) bool {
			info, err := os.Stat(filepath.Join(dir, name))
			return err != nil || info.IsDir() || info.Mode()&0o111 == 0
		})
		if missing {
			continue
		}
		p := program{dir: dir, first: set[0]}
		if w.cache != "" && strings.HasPrefix(dir, w.unpacked()+"/") {
			var libs []string
			for _, pattern := range []string{"/usr/lib/*-linux-*", "/lib/*-linux-*"} {
				found, _ := filepath.Glob(w.unpacked() + pattern) // fails on a bad pattern only
				libs = append(libs, found...)
			}
			p.env = []string{"LD_LIBRARY_PATH=" + strings.Join(libs, ":")}
		}
		return p, true
	}
	return program{}, false
}

// unpacked is the root that packages are unpacked to.
func (w wanted) unpacked() string { return filepath.Join(w.cache, w.name) }

func logger(log *slog.Logger) *slog.Logger { return cmp.Or(log, slog.Default()) }

// version is the last number in a path: 17 in /usr/lib/postgresql/17/bin.
func version(path string) int {
	digits := strings.FieldsFunc(path, func(r rune) bool { return r < '0' || r > '9' })
	if len(digits) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(digits[len(digits)-1]) // digits only; too many of them sort last
	return n
}
