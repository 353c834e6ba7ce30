package main

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"regexp"
)

// libraryLog gives slog what libraries say on Go's standard logger, which has no other way: net/http
// says there which answers it did not ask for. What matters of it, callq's own lines say.
type libraryLog struct{ log *slog.Logger }

// standardTo lets the standard logger, one for the whole process, write to log.
func standardTo(to *slog.Logger) {
	log.SetFlags(0)
	log.SetOutput(libraryLog{to})
}

// Write takes one line of the standard logger. What it quotes is left out: it may be an API's answer.
func (l libraryLog) Write(line []byte) (int, error) {
	said := regexp.MustCompile(`"(?:[^"\\]|\\.)*"?`).ReplaceAllString(string(bytes.TrimSpace(line)), "…")
	l.log.DebugContext(context.Background(), "library reported", "message", said)
	return len(line), nil
}
