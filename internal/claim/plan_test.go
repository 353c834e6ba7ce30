package claim

import (
	"testing"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
)

// The plans of the statements that run all the time. The rules and the pauses are small, and may
// be read as a whole.
//
//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), pgtest.FillSQL, []string{"call_queues", "call_limits", "call_pauses", "call_remotes"}, map[string]pgtest.Planned{
		"due":         {SQL: dueSQL},
		"paused":      {SQL: pausedSQL},
		"paused keys": {SQL: pausedKeysSQL},
		"open":        {SQL: openAttemptsSQL},
		"refuse":      {SQL: refuseSQL},
	})
}
