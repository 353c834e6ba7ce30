package policy

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// Applied is a policy that was applied. Table call_policies keeps the hash of each.
type Applied struct {
	Hash string    `json:"hash" db:"hash"`
	At   time.Time `json:"applied_at" db:"applied_at"`
	By   string    `json:"applied_by" db:"applied_by"`
}

// String says who applied it, and when.
func (a *Applied) String() string {
	if a == nil {
		return "nobody has applied"
	}
	return fmt.Sprintf("%s applied at %s", a.By, a.At.UTC().Format(time.RFC3339))
}

// Effective reads the policy in force: the one applied last. It returns nil if none was ever applied.
func Effective(ctx context.Context, db ledger.DB) (*Applied, error) {
	newest, err := collect(ctx, db, pgx.RowToAddrOfStructByName[Applied], effectiveSQL)
	if err != nil {
		return nil, fmt.Errorf("read the policy in force: %w", err)
	}
	if len(newest) == 0 {
		return nil, nil
	}
	return newest[0], nil
}

const effectiveSQL = `SELECT hash, applied_at, applied_by FROM call_policies ORDER BY number DESC LIMIT 1`

// hash identifies a checked policy. The order in which its parts were given does not matter.
func (p Policy) hash() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic("policy: " + err.Error()) // none of its types can fail
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// Kept says why a start left the policy in force as it was.
type Kept struct {
	*Applied
	Why string
}

// keep returns the policy in force if a start with policy p must not replace it, else nil. That is so if p was
// applied before and has been replaced since: a crash in a rolling deployment turns nothing back. It is also so if
// p has no limits and some are in force, as when a file was not found.
func (a *application) keep(ctx context.Context, p Policy) (*Kept, error) {
	newest, err := Effective(ctx, a.tx)
	if err != nil || newest == nil || newest.Hash == p.hash() {
		return nil, err
	}
	var known, limits bool
	if err := a.tx.QueryRow(ctx, keepSQL, p.hash()).Scan(&known, &limits); err != nil {
		return nil, fmt.Errorf("read the policies: %w", err)
	}
	switch {
	case known:
		return &Kept{newest, "a newer configuration has replaced this one"}, nil
	case limits && len(p.Limits) == 0:
		return &Kept{newest, "this configuration has no limits, and would remove those in force"}, nil
	}
	return nil, nil
}

const keepSQL = `
SELECT EXISTS (SELECT FROM call_policies WHERE hash = $1), EXISTS (SELECT FROM call_limits WHERE queues <> '{}')`
