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
		"handed":       {SQL: handedSQL},
		"readdress":    {SQL: readdressSQL},
		"late":         {SQL: lateSQL},
		"expire":       {SQL: expireSQL},
		"lost":         {SQL: overdueSQL + lostWhere},
		"unstarted":    {SQL: overdueSQL + unstartedWhere},
		"former epoch": {SQL: overdueSQL + formerWhere},
		"clean usage":  {SQL: cleanUsageSQL},
		"pools":        {SQL: poolsSQL},
	})
}
