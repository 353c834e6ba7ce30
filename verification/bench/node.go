package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// nodeFiles are the peers in Node.js: their programs, and the packages it needs.
//
//go:embed node/bench.mjs node/limited.mjs node/package.json node/package-lock.json
var nodeFiles embed.FS

// How long npm may take, and the oldest Node.js that the packages run on.
const (
	npmWithin            = 5 * time.Minute
	nodeMajor, nodeMinor = 22, 18
)

// nodeFolder is where the packages are: in the user's cache, so that the repository stays as it is. Its name
// is a hash of which they are, so what was installed for other versions is not used.
func nodeFolder() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, name := range packageFiles() {
		text, err := nodeFiles.ReadFile("node/" + name)
		if err != nil {
			return "", err
		}
		hash.Write(text)
	}
	return filepath.Join(cache, "callq", "bench-node", hex.EncodeToString(hash.Sum(nil))[:12]), nil
}

func packageFiles() []string { return []string{"package.json", "package-lock.json"} }

// installNode has npm install the packages, unless they are there.
func installNode(ctx context.Context, say io.Writer) error {
	folder, err := nodeFolder()
	if err != nil {
		return err
	}
	if !exists(folder) {
		fmt.Fprintf(say, "installing BullMQ, graphile-worker and pg-boss into %s\n", folder)
		if err := installInto(ctx, folder); err != nil {
			return fmt.Errorf("install their packages: %w", err)
		}
	}
	_, err = findNode(ctx, folder)
	return err
}

// installInto installs beside the folder and renames, so that the folder is whole where it exists.
func installInto(ctx context.Context, folder string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, npmWithin)
	defer cancel()
	npm, err := exec.LookPath("npm")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o750); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(folder), "installing-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	for _, name := range packageFiles() {
		text, err := nodeFiles.ReadFile("node/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(temp, name), text, 0o600); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = temp
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, bytes.TrimSpace(said))
	}
	if err := os.Rename(temp, folder); err != nil && !exists(folder) { // another run may have been quicker
		return err
	}
	return nil
}

// findNode finds a Node.js that is new enough: the one that came with the packages, on Linux, or the one on PATH.
func findNode(ctx context.Context, folder string) (string, error) {
	path := filepath.Join(folder, "node_modules", ".bin", "node")
	if !exists(path) {
		var err error
		if path, err = exec.LookPath("node"); err != nil {
			return "", err
		}
	}
	said, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(said), "v%d.%d", &major, &minor); err != nil {
		return "", fmt.Errorf("read the version of Node.js: %w", err)
	}
	if major < nodeMajor || major == nodeMajor && minor < nodeMinor {
		return "", fmt.Errorf("node is %s; they need v%d.%d", bytes.TrimSpace(said), nodeMajor, nodeMinor)
	}
	return path, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
