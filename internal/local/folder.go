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

// maxSocketPath is what the shortest sockaddr_un takes (macOS: 104 with the final zero).
const maxSocketPath = 103

// folder is where one server keeps its files. It is locked: by this process while it is open, and
// by the server, which inherits the lock, while it lives. So two never share one, and a
// temporary folder that nobody holds can be swept.
type folder struct {
	path      string
	lock      *os.File
	temporary []string // removed by close
}

// openFolder makes and locks path, or a temporary folder if path is empty. It waits a little for
// a server that is just going.
func openFolder(ctx context.Context, path string) (*folder, error) {
	f := &folder{path: path}
	if path == "" {
		sweep()
		dir, err := f.temp()
		if err != nil {
			return nil, err
		}
		f.path = dir
	} else {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		f.path = abs
		if err := os.MkdirAll(abs, 0o711); err != nil {
			return nil, err
		}
	}
	lock, err := os.OpenFile(filepath.Join(f.path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.lock = lock
	ctx, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	for !tryLock(lock) {
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%s is in use by another server", f.path), f.close())
		case <-time.After(pollEvery):
		}
	}
	return f, nil
}

// temp makes a short folder that others may pass through but not list; close removes it.
func (f *folder) temp() (string, error) {
	dir, err := os.MkdirTemp("", "callq-")
	if err != nil {
		return "", err
	}
	f.temporary = append(f.temporary, dir)
	return dir, os.Chmod(dir, 0o711)
}

func (f *folder) close() error {
	var errs []error
	for _, dir := range f.temporary {
		errs = append(errs, os.RemoveAll(dir))
	}
	if f.lock != nil {
		errs = append(errs, f.lock.Close())
	}
	return errors.Join(errs...)
}

// sweep removes the temporary folders of processes that were killed.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "callq-*")) // fails on a bad pattern only
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < time.Minute { // may be about to be locked
			continue
		}
		lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if tryLock(lock) {
			_ = os.RemoveAll(dir) // best effort: the next start tries again
		}
		_ = lock.Close()
	}
}

func tryLock(file *os.File) bool {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
