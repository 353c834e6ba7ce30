package tasks

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
)

// behind is a database whose reads a standby answers that does not have the newest rows yet.
type behind struct{ schema.DB }

func (b behind) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "FOR KEY SHARE") {
		return b.DB.Query(ctx, sql, args...)
	}
	return b.DB.Query(ctx, sql, []int64{}, []int32{})
}

// An attempt that a lagging standby does not know is loaded all the same, and the log says so once. One that nobody knows is none.
func TestLoadAtALaggingStandby(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, ledger.Settings())
	if _, err := pool.Exec(t.Context(), `
		INSERT INTO call_queue (status, attempts) VALUES ('dispatched', 1), ('dispatched', 1);
		INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		SELECT id, 1, 0, 1, 1, now(), now(), now(), callq.epoch(), 'http', 'default', 'http', '', '{l1}', '{""}', '{1}' FROM call_queue`); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	w := &Worker{log: slog.New(slog.NewTextHandler(&log, nil)), session: session{db: behind{pool}}}
	for range 2 {
		list, err := w.loadOnce(t.Context(), []handoff.Ref{{CallID: 1, Attempt: 1}, {CallID: 2, Attempt: 2}, {CallID: 2, Attempt: 1}})
		if err != nil || list[0] == nil || list[0].callID != 1 || list[1] != nil || list[2] == nil || list[2].callID != 2 {
			t.Errorf("loaded %v, %v", list, err)
		}
	}
	if n := strings.Count(log.String(), "a load balancer sends reads there"); n != 1 {
		t.Errorf("the log warned %d times, want once: %s", n, &log)
	}
}
