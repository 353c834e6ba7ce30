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

// openFolder makes and locks path, or a temporary folder if path is empty. It waits briefly for a server
// that is about to end.
func openFolder(ctx context.Context, path string) (*folder, error) {
	f := &folder{}
	if err := f.open(ctx, path); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *folder) open(ctx context.Context, path string) (err error) {
	if path == "" {
		sweep()
		f.path, err = f.temp()
	} else if f.path, err = filepath.Abs(path); err == nil {
		err = os.MkdirAll(f.path, 0o711)
	}
	if err != nil {
		return err
	}
	if f.lock, err = os.OpenFile(filepath.Join(f.path, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	for !tryLock(f.lock) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is in use by another server", f.path)
		case <-time.After(pollEvery):
		}
	}
	return nil
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
	if f.lock != nil {
		errs = append(errs, f.lock.Close())
	}
	return errors.Join(errs...)
}

// sweep removes the temporary folders of processes that were killed.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "callq-*")) // fails for a bad pattern only
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < time.Minute { // its owner may be about to lock it
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
