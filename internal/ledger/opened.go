package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Opening is an operator's word that nothing is missing of what a limit has used: the proof rests on it.
type Opening struct {
	Limit  string    `json:"limit" db:"name"`
	At     time.Time `json:"at" db:"at"`
	By     string    `json:"by" db:"by"`
	Reason string    `json:"reason" db:"reason"`
}

// OpenedPrefix begins such a change in the audit.
const OpenedPrefix = "opened: "

func readOpenings(ctx context.Context, tx pgx.Tx) ([]Opening, error) {
	rows, err := tx.Query(ctx, openingsSQL, OpenedPrefix)
	if err != nil {
		return nil, fmt.Errorf("read which limits were opened: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[Opening])
}

const openingsSQL = `
SELECT name, at, by, substr(change, length($1) + 1) AS reason
FROM call_audit WHERE what = 'limit' AND starts_with(change, $1)
ORDER BY id`
