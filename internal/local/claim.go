package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ErrClaimed says that another process has the folder. What it wrote down is the claim's note.
var ErrClaimed = errors.New("in use by another process")

// Claim is this process's hold of a folder below which it runs servers. It ends with the process,
// however that ends; the servers do not share it.
type Claim struct{ file *os.File }

// ClaimFolder makes a folder and takes it at once, or says with ErrClaimed and its note who has it.
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

// Note writes down what another that wants the folder is told.
func (c *Claim) Note(text string) error {
	if err := c.file.Truncate(0); err != nil {
		return err
	}
	_, err := c.file.WriteAt([]byte(text), 0)
	return err
}

// Release gives the folder up.
func (c *Claim) Release() error { return c.file.Close() }
