package ledger_test

import (
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

// An attempt of a former epoch goes on if the worker that started it says so, though its start was lost; nothing else changes.
//
//callq:guarantee 1
func TestVouch(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for name, c := range map[string]struct {
		change  string
		vouched bool
	}{
		"it started here":                {`UPDATE callq.call_open SET epoch = 'former'`, true},
		"its start was lost":             {`UPDATE callq.call_open SET epoch = 'former', token = NULL, worker = NULL, started_at = NULL, deadline = NULL`, true},
		"another started it":             {`UPDATE callq.call_open SET epoch = 'former', token = 8`, false},
		"another attempt is open":        {`UPDATE callq.call_open SET epoch = 'former', attempt = 2`, false},
		"it is of this epoch":            {`SELECT`, false},
		"it is of this epoch, not begun": {`UPDATE callq.call_open SET token = NULL, worker = NULL, started_at = NULL, deadline = NULL`, false},
		"it has ended":                   {`DELETE FROM callq.call_open`, false},
	} {
		ledgertest.Trial(t, pool, name, func(t *testing.T, tx pgx.Tx) {
			id := ledgertest.Open(t, tx)
			startedAt := ledgertest.Start(t, tx, ledgertest.Request(id, 7))[7].StartedAt
			ledgertest.Exec(t, tx, c.change)
			vouched, err := ledger.Vouch(t.Context(), tx, "w", []ledger.Vouched{{CallID: id, Attempt: 1, Token: 7, StartedAt: startedAt, Within: time.Minute}})
			if err != nil || slices.Contains(vouched, id) != c.vouched {
				t.Error(vouched, err)
			}
			if c.vouched {
				ledgertest.Want(t, tx, `SELECT epoch = callq.epoch() AND token = 7 AND started_at = $1 AND deadline > $1 AND worker = 'w' FROM callq.call_open`, startedAt)
			}
		})
	}
}
