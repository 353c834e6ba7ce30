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
		"start":            {SQL: startSQL},
		"refused":          {SQL: refusedSQL},
		"close, unlimited": {SQL: closeSQL(false, false)},
		"close":            {SQL: closeSQL(true, true)},
		"vouch":            {SQL: vouchSQL},
		"open":             {SQL: lockOpenSQL},
	})
}
