package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ErrClaimed means that another process has claimed the folder.
var ErrClaimed = errors.New("in use by another process")

// Claim is this process's hold on a folder in which it runs servers. It ends with the process; the
// servers do not share it.
type Claim struct{ file *os.File }

// ClaimFolder makes a folder and claims it. Where another process has, it returns ErrClaimed and that
// process's note.
func ClaimFolder(dir string) (c *Claim, note string, err error) {
	if err := os.MkdirAll(dir, 0o711); err != nil { // the user that Postgres runs as passes through
		return nil, "", err
	}
	file, err := os.OpenFile(filepath.Join(dir, "claim"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, "", err
	}
	if !tryLock(file) {
		text, readErr := io.ReadAll(io.LimitReader(file, 1<<12))
		return nil, string(text), errors.Join(fmt.Errorf("%s is %w", dir, ErrClaimed), readErr, file.Close())
	}
	return &Claim{file}, "", file.Truncate(0)
}

// Note writes down what another process that wants the folder is told.
func (c *Claim) Note(text string) error {
	if err := c.file.Truncate(0); err != nil {
		return err
	}
	_, err := c.file.WriteAt([]byte(text), 0)
	return err
}

// Release gives the folder up.
func (c *Claim) Release() error { return c.file.Close() }
