package dispatcher

import (
	"testing"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/pools"
)

// The plans of the statements that run all the time. call_workers, the rules and the pauses are small, and may
// be read as a whole.
//
//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), pgtest.FillSQL, []string{"call_workers", "call_queues", "call_limits", "call_pauses", "call_remotes"}, map[string]pgtest.Planned{
		"due":         {SQL: dueSQL, Uses: []string{"call_inbox_due_idx at", "call_flows_wake_idx wake_at", "call_flows_active_idx queue"}},
		"paused":      {SQL: pausedSQL},
		"paused keys": {SQL: pausedKeysSQL},
		"occupied":    {SQL: occupiedSQL, Uses: []string{"call_open_batch_idx batch", "call_usage_pkey limit_name"}},
		"open":        {SQL: openSQL, Uses: []string{"call_queue_pkey id", "call_open_pkey call_id"}},
		"refuse":      {SQL: refuseSQL, Uses: []string{"call_queue_pkey id"}},
		"pools":       {SQL: pools.SQL, Uses: []string{"call_open_batch_idx batch"}},
	})
}
