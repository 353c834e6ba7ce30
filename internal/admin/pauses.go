package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// Pause is a pause that has not ended.
type Pause struct {
	Key    string     `json:"key" db:"key"` // empty: all
	Until  *time.Time `json:"until" db:"until"`
	Reason string     `json:"reason" db:"reason"`
	At     time.Time  `json:"at" db:"at"`
	By     string     `json:"by" db:"by"`
}

// keysPaused is what a state adds where keys are paused alone.
func keysPaused(n int64) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", 1 key paused"
	}
	return fmt.Sprintf(", %d keys paused", n)
}

// ReadPauses reads the pauses of a limit or queue: what is "limit" or "queue".
func ReadPauses(ctx context.Context, db ledger.DB, what, name string) ([]Pause, error) {
	return collect[Pause](ctx, db, "read pauses", pausesSQL, what, name)
}

const pausesSQL = `
SELECT key, nullif(until, 'infinity') AS until, reason, at, by
FROM call_pauses
WHERE what = $1 AND name = $2 AND until > clock_timestamp()
ORDER BY key
LIMIT 1000`

// Change is a change of a limit or queue.
type Change struct {
	At     time.Time `json:"at" db:"at"`
	By     string    `json:"by" db:"by"`
	Change string    `json:"change" db:"change"`
}

// ReadChanges reads the last changes of a limit or queue, newest first.
func ReadChanges(ctx context.Context, db ledger.DB, what, name string) ([]Change, error) {
	return collect[Change](ctx, db, "read the audit", auditSQL, what, name)
}

const auditSQL = `
SELECT at, by, change FROM call_audit WHERE what = $1 AND name = $2 ORDER BY id DESC LIMIT 20`
