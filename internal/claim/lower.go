package claim

import (
	"context"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/usage"
	"github.com/jackc/pgx/v5"
)

// lower has the headroom give out no more of limits than remains by their API (call_remotes), until that resets. It raises none.
func (s *underLocks) lower(ctx context.Context, conn *schema.Conn, h *headroom) error {
	if !s.lowered {
		return nil
	}
	rows, _ := conn.Query(ctx, loweredSQL, s.queue.LimitNames) // ForEachRow returns its error
	h.resets = map[usage.Of]time.Time{}
	lowered := map[usage.Of]int64{}
	var row usage.Of
	var most int64
	var in time.Duration
	_, err := pgx.ForEachRow(rows, []any{&row.Limit, &row.Key, &most, &in}, func() error {
		lowered[row], h.resets[row] = most, h.now.Add(in)
		return nil
	})
	for _, c := range h.counts {
		if most, is := lowered[c.Of]; !is || !c.Lower(most) {
			delete(h.resets, c.Of)
		}
	}
	return ledger.Wrap("read what APIs say remains", err)
}

const loweredSQL = `
SELECT limit_name, key, lowered, reset_at - clock_timestamp()
FROM callq.call_remotes
WHERE limit_name = ANY($1) AND lowered IS NOT NULL AND reset_at > clock_timestamp()`
