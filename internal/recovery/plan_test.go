package recovery

import (
	"testing"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
)

//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), pgtest.FillSQL, []string{"call_workers", "call_queues", "call_limits"}, map[string]pgtest.Planned{
		"handed":       {SQL: handedSQL, Uses: []string{"call_open_batch_idx batch"}},
		"readdress":    {SQL: readdressSQL, Uses: []string{"call_open_pkey call_id"}},
		"late":         {SQL: lateSQL, Uses: []string{"call_queue_expires_idx expires_at"}},
		"expire":       {SQL: expireSQL, Uses: []string{"call_queue_pkey id"}},
		"lost":         {SQL: overdueSQL + lostWhere, Uses: []string{"call_open_batch_idx batch", "call_queue_pkey id"}},
		"unstarted":    {SQL: overdueSQL + unstartedWhere, Uses: []string{"call_open_batch_idx batch", "call_queue_pkey id"}},
		"former epoch": {SQL: overdueSQL + formerWhere, Uses: []string{"call_open_batch_idx batch", "call_queue_pkey id", "call_epochs_pkey epoch"}},
		"clean usage":  {SQL: cleanUsageSQL, Uses: []string{"call_usage_pkey limit_name"}},
	})
}
