package main

import (
	"bytes"
	"context"
	"log"
	"log/slog"
)

// libraryLog gives slog what libraries say on Go's standard logger, which has no other way: net/http
// says there which answers it did not ask for. What matters of it, callq's own lines say.
type libraryLog struct{ log *slog.Logger }

// standardTo lets the standard logger, one for the whole process, write to log.
func standardTo(to *slog.Logger) {
	log.SetFlags(0)
	log.SetOutput(libraryLog{to})
}

// Write takes one line of the standard logger. Of an answer that was not asked for it drops the answer,
// which may repeat a secret.
func (l libraryLog) Write(line []byte) (int, error) {
	message, _, _ := bytes.Cut(line, []byte(" starting with "))
	l.log.DebugContext(context.Background(), "library reported", "message", string(bytes.TrimSpace(message)))
	return len(line), nil
}
