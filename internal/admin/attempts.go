package admin

import (
	"context"
	"encoding/json"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// Attempt is a row of the ledger, or an open attempt, whose outcome is empty.
type Attempt struct {
	Attempt    int             `json:"attempt" db:"attempt"`
	Outcome    string          `json:"outcome" db:"outcome"`
	ClaimedAt  time.Time       `json:"claimed_at" db:"claimed_at"`
	StartedAt  *time.Time      `json:"started_at" db:"started_at"`
	ArrivedBy  *time.Time      `json:"arrived_by" db:"arrived_by"`
	FinishedAt *time.Time      `json:"finished_at" db:"finished_at"`
	Cost       int64           `json:"cost" db:"cost"`
	Settled    *int64          `json:"settled" db:"settled"` // what the handler said that it cost
	Worker     *string         `json:"worker" db:"worker"`
	Error      *string         `json:"error" db:"error"`
	Charged    json.RawMessage `json:"charged" db:"charged"`
}

// ReadAttempts reads the attempts of a call, an open one included.
func ReadAttempts(ctx context.Context, db ledger.DB, id int64) ([]Attempt, error) {
	return collect[Attempt](ctx, db, "get attempts", attemptsSQL, id)
}

const attemptsSQL = `
SELECT attempt, outcome, claimed_at, started_at, arrived_by, finished_at, cost, settled, worker, error, charged
FROM call_attempts WHERE call_id = $1 AND attempt > 0
UNION ALL
SELECT attempt, '', claimed_at, started_at, NULL, NULL, cost, NULL, worker, NULL, '[]'
FROM call_open WHERE call_id = $1
ORDER BY attempt`

// State is the outcome; of an open attempt, whether it runs or waits.
func (a Attempt) State() string {
	switch {
	case a.Outcome != "":
		return a.Outcome
	case a.StartedAt != nil:
		return "(running)"
	}
	return "(waits for a worker)"
}
