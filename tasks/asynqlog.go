package tasks

import (
	"context"
	"fmt"
	"log/slog"
)

// asynqLog gives Asynq's own log lines to slog. What Asynq calls fatal never ends our process.
type asynqLog struct{ log *slog.Logger }

func (l asynqLog) Debug(args ...any) { l.write(slog.LevelDebug, args) }
func (l asynqLog) Info(args ...any)  { l.write(slog.LevelDebug, args) }
func (l asynqLog) Warn(args ...any)  { l.write(slog.LevelWarn, args) }
func (l asynqLog) Error(args ...any) { l.write(slog.LevelError, args) }
func (l asynqLog) Fatal(args ...any) { l.write(slog.LevelError, args) }

func (l asynqLog) write(level slog.Level, args []any) {
	l.log.Log(context.Background(), level, "Asynq reported", "message", fmt.Sprint(args...))
}
