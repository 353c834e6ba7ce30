package dispatcher

import (
	"context"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// lower has the headroom give out no more of limits than their API says remains (call_remotes), until that resets. It raises none.
func (s *snapshot) lower(ctx context.Context, conn *schema.Conn, h *headroom) error {
	if !s.lowered {
		return nil
	}
	of := make(map[limitKey]*asked, len(h.asks))
	for _, a := range h.asks {
		of[a.limitKey] = a
	}
	rows, _ := conn.Query(ctx, loweredSQL, s.queue.LimitNames) // ForEachRow returns its error
	var row limitKey
	var most int64
	var in time.Duration
	_, err := pgx.ForEachRow(rows, []any{&row.limit, &row.key, &most, &in}, func() error {
		if a := of[row]; a != nil && a.use.Rate.Algorithm != limit.TokenBucket && most < a.use.Rate.Units {
			a.use.Rate.Units, a.reset = most, h.now.Add(in)
		}
		return nil
	})
	return ledger.Wrap("read what APIs say remains", err)
}

const loweredSQL = `
SELECT limit_name, key, lowered, reset_at - clock_timestamp()
FROM callq.call_remotes
WHERE limit_name = ANY($1) AND lowered IS NOT NULL AND reset_at > clock_timestamp()`
