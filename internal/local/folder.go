package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// maxSocketPath is the longest path of a socket on any system (macOS: 104 bytes with the final zero).
const maxSocketPath = 103

// folder holds the files of one server. This process locks it, and the server inherits the lock: so two
// servers never share a folder, and a temporary one that nobody holds may be swept.
type folder struct {
	path      string
	lock      *os.File
	temporary []string // removed by close
}

// open makes and locks path, or a temporary folder if path is empty. It waits briefly for a server that is
// about to end.
func (f *folder) open(ctx context.Context, path string) (err error) {
	if path == "" {
		sweep()
		f.path, err = f.temp()
	} else {
		f.path, err = filepath.Abs(path)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	for {
		f.lock, err = lockFile(f.path, "lock")
		if !errors.Is(err, errLocked) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is in use by another server", f.path)
		case <-time.After(pollEvery):
		}
	}
}

// temp makes a folder with a short name that other users may pass through; close removes it.
func (f *folder) temp() (string, error) {
	dir, err := os.MkdirTemp("", "callq-")
	if err != nil {
		return "", err
	}
	f.temporary = append(f.temporary, dir)
	return dir, os.Chmod(dir, 0o711)
}

// forSocket returns dir, or a temporary folder if the socket's path in dir would be too long.
func (f *folder) forSocket(dir, socket string) (string, error) {
	if len(filepath.Join(dir, socket)) <= maxSocketPath {
		return dir, nil
	}
	return f.temp()
}

func (f *folder) close() error {
	var errs []error
	for _, dir := range f.temporary {
		errs = append(errs, os.RemoveAll(dir))
	}
	_ = f.lock.Close() // it may be closed already, or none
	return errors.Join(errs...)
}

// sweep removes the temporary folders of processes that were killed.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "callq-*")) // fails for a bad pattern only
	for _, dir := range dirs {
		info, err := os.Stat(filepath.Join(dir, "lock"))
		if err != nil || time.Since(info.ModTime()) < time.Minute { // its owner may be about to lock it
			continue
		}
		if lock, err := lockFile(dir, "lock"); err == nil {
			_ = os.RemoveAll(dir) // best effort: the next start tries again
			_ = lock.Close()
		}
	}
}

var errLocked = errors.New("locked")

// lockFile locks a file in a folder, and makes both. It returns errLocked where another process has.
func lockFile(dir, name string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil { // the user that Postgres runs as passes through
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil && syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil, errors.Join(errLocked, file.Close())
	}
	return file, err
}
