package maintenance

import (
	"testing"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
)

//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), pgtest.FillSQL, []string{"call_limits"}, map[string]pgtest.Planned{
		"purge calls":    {SQL: purgeCallsSQL, Uses: []string{"call_open_pkey call_id", "call_queue_pkey id"}},
		"purge attempts": {SQL: purgeAttemptsSQL, Uses: []string{"call_open_pkey call_id", "call_attempts_pkey call_id", "call_queue_pkey id"}},
	})
}
