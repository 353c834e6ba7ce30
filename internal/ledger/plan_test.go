package ledger

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// The start and the close find every row by its id, and so lock rows in the order of the ids they were asked for.
//
//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, Settings(), pgtest.FillSQL, nil, map[string]pgtest.Planned{
		"start":            {SQL: startSQL, Uses: []string{"call_open_pkey call_id", "call_queue_pkey id", "call_queues_pkey name", "call_limits_pkey name", "call_meta_pkey name"}},
		"refused":          {SQL: refusedSQL, Uses: []string{"call_open_pkey call_id", "call_queue_pkey id", "call_meta_pkey name"}},
		"close, unlimited": {SQL: closeSQL(false, false), Uses: []string{"call_open_pkey call_id", "call_queue_pkey id", "call_limits_pkey name"}},
		"close":            {SQL: closeSQL(true, true), Uses: []string{"call_open_pkey call_id", "call_queue_pkey id", "call_limits_pkey name"}},
		"vouch":            {SQL: vouchSQL, Uses: []string{"call_open_pkey call_id"}},
		"open":             {SQL: openSQL, Uses: []string{"call_open_pkey call_id"}},
	})
}
