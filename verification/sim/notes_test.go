package sim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// notes puts what a dispatcher logs into the record.
type notes struct{ p *process }

func (n *notes) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (n *notes) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	n.p.w.note(0, "", "%s: %s", n.p, b.String())
	return nil
}

func (n *notes) WithAttrs([]slog.Attr) slog.Handler { return n }
func (n *notes) WithGroup(string) slog.Handler      { return n }
