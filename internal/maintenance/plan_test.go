package maintenance

import (
	"testing"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
)

//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), pgtest.FillSQL, []string{"call_limits", "call_queues"}, map[string]pgtest.Planned{
		"purge calls":    {SQL: purgeCallsSQL},
		"purge attempts": {SQL: purgeAttemptsSQL},
		"purge answers":  {SQL: purgeResultsSQL},
	})
}
