package local

import (
	"bytes"
	"io"
	"sync"
)

const tailBytes = 2048

// tail keeps the end of what is written to it and passes everything on.
type tail struct {
	out io.Writer // may be nil

	mu   sync.Mutex
	kept []byte // guarded by mu
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = bytes.Clone(t.kept[over:])
	}
	if t.out != nil {
		_, _ = t.out.Write(p) // a log that cannot be written must not stop the server
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.kept))
}
