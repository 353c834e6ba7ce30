package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// ErrMissing means that a program is not installed.
var ErrMissing = errors.New("not installed")

// Program is a program that was found.
type Program struct {
	Dir  string   // the folder of its binaries
	Name string   // the first binary
	Env  []string // variables that its binaries need, beside this process's
}

// Command is exec.CommandContext for one of the program's binaries.
func (p Program) Command(ctx context.Context, binary string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.Dir, binary), args...)
	cmd.Env = slices.Concat(os.Environ(), []string{"LC_ALL=C"}, p.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	return cmd
}

// FindPostgres finds Postgres's binaries. Its error has how to install them.
func FindPostgres() (Program, error) {
	p, err := Find("postgres", []string{"postgres", "initdb"})
	return p, hint(err, "postgresql", "postgresql@17")
}

// FindRedis finds redis-server, or else Valkey. Its error has how to install it.
func FindRedis() (Program, error) {
	p, err := Find("redis", []string{"redis-server"}, []string{"valkey-server"})
	return p, hint(err, "redis-server", "redis")
}

func hint(err error, apt, brew string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nrun `make deps` in a clone of callq, `apt-get install %s` or `brew install %s`, "+
		"or put the folder of its binaries on PATH", err, apt, brew)
}

// Find finds a program, or fails with ErrMissing. Any of the sets will do, if all its binaries stand in one folder. Find
// searches PATH, the folders where systems and Homebrew put programs, the newest version first, and in Unpacked(name).
func Find(name string, sets ...[]string) (Program, error) {
	dirs := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(dir string) bool { return !filepath.IsAbs(dir) })
	folders := folders(name)
	for _, pattern := range folders {
		found, _ := filepath.Glob(pattern) // fails for a bad pattern only
		slices.Reverse(found)              // the newest first: versions have two digits
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		if p, ok := in(dir, name, sets); ok {
			return p, nil
		}
	}
	return Program{}, fmt.Errorf("%s: %w (looked on PATH and in %s)", name, ErrMissing, strings.Join(folders, ", "))
}

// folders lists, as patterns, where programs are beside PATH.
func folders(name string) []string {
	list := []string{"/usr/sbin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/home/linuxbrew/.linuxbrew/bin"}
	if name == "postgres" {
		list = []string{
			"/usr/lib/postgresql/*/bin", "/usr/lib/postgresql*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*",
			"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
			"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
		}
	}
	if root := Unpacked(name); root != "" {
		list = append(list, root+"/usr/lib/postgresql/*/bin", root+"/usr/bin", root+"/usr/sbin")
	}
	return list
}

// in returns the program if dir holds all binaries of a set.
func in(dir, name string, sets [][]string) (Program, bool) {
	missing := func(binary string) bool {
		info, err := os.Stat(filepath.Join(dir, binary))
		return err != nil || info.IsDir() || info.Mode()&0o111 == 0
	}
	for _, set := range sets {
		if slices.ContainsFunc(set, missing) {
			continue
		}
		p := Program{Dir: dir, Name: set[0]}
		if root := Unpacked(name); root != "" && strings.HasPrefix(dir, root+"/") {
			usr, _ := filepath.Glob(root + "/usr/lib/*-linux-*") // fails for a bad pattern only
			lib, _ := filepath.Glob(root + "/lib/*-linux-*")
			p.Env = []string{"LD_LIBRARY_PATH=" + strings.Join(append(usr, lib...), ":")}
		}
		return p, true
	}
	return Program{}, false
}

// Unpacked is the root of the user's cache into which `make deps` unpacks a program's packages where
// it may not install them. It is empty if the user has no cache.
func Unpacked(name string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "callq", name)
}
