// Package packages has Debian's, npm's and Go's package managers install what the suites run callq beside.
package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrMissing means that a package cannot be had: that is no fault of callq's.
var ErrMissing = errors.New("cannot be had")

// Debian has apt-get install packages, unless they are there. Only root may.
func Debian(ctx context.Context, names ...string) error {
	var missing []string
	for _, name := range names {
		status, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", name).Output()
		if err != nil || string(status) != "installed" {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return nil
	}
	// Their services stay as they are: nothing is started that somebody would have to stop.
	install := append([]string{
		"env", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1",
		"apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120",
	}, missing...)
	if err := RunIn(ctx, "/", install...); err == nil {
		return nil
	}
	_ = RunIn(ctx, "/", "apt-get", "update", "-q") // the lists may be old, or none; what is wrong with them, install tells
	if err := RunIn(ctx, "/", install...); err != nil {
		return fmt.Errorf("%v %w: %w", missing, ErrMissing, err)
	}
	return nil
}

// NPM copies a folder into the user's cache, so that the repository stays as it is, and has npm install the packages of its
// package.json there, unless they are there. It returns the copy.
func NPM(ctx context.Context, folder string) (dir string, err error) {
	packages, err := os.ReadFile(filepath.Join(folder, "package.json"))
	if err != nil {
		return "", err
	}
	if _, err := exec.LookPath("npm"); err != nil { // Node.js may bring it, or not
		if err := Debian(ctx, "nodejs", "npm"); err != nil {
			return "", err
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(packages)
	dir = filepath.Join(cache, "callq", "npm", filepath.Base(folder)+"-"+hex.EncodeToString(hash[:6]))
	if err := copyFiles(folder, dir); err != nil {
		return "", err
	}
	whole := filepath.Join(dir, "node_modules", ".whole")
	if _, err := os.Stat(whole); err == nil {
		return dir, nil
	}
	if err := RunIn(ctx, dir, "npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"); err != nil {
		return "", fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return dir, os.WriteFile(whole, nil, 0o600)
}

func copyFiles(from, to string) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return err
	}
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, file := range files {
		if file.IsDir() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(from, file.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, file.Name()), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Go builds the program of a folder that has a go.mod of its own.
func Go(ctx context.Context, folder, binary string) error {
	if err := RunIn(ctx, folder, "env", "GOWORK=off", "GOFLAGS=", "go", "mod", "download"); err != nil {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return RunIn(ctx, folder, "env", "GOWORK=off", "GOFLAGS=", "go", "build", "-o", binary, ".")
}

// RunIn runs a command. Its error has the last of what the command has printed, where most say what was wrong.
func RunIn(ctx context.Context, dir string, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, LastLines(string(out)))
	}
	return nil
}

// LastLines are the last of a text's lines.
func LastLines(text string) string {
	const most = 600
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-most):]
}
