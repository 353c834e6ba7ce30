package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// The database holds one policy: the rules that were applied last are in force, whoever applied them.
// call_policies has the hash of each policy that was ever applied. So a process that starts with rules that
// have been replaced since knows it, and does not turn them back.

// Policy is a policy that was applied.
type Policy struct {
	Hash string    `json:"hash" db:"hash"`
	At   time.Time `json:"applied_at" db:"applied_at"`
	By   string    `json:"applied_by" db:"applied_by"`
}

// AppliedText says who applied it, and when.
func (p *Policy) AppliedText() string {
	if p == nil {
		return "nobody has applied"
	}
	return fmt.Sprintf("%s applied at %s", p.By, p.At.UTC().Format(time.RFC3339))
}

// InForce is the policy in force; nil: none was ever applied.
func InForce(ctx context.Context, db ledger.DB) (*Policy, error) {
	return readPolicy(ctx, db, `SELECT hash, applied_at, applied_by FROM call_policies ORDER BY number DESC LIMIT 1`)
}

func readPolicy(ctx context.Context, db ledger.DB, sql string, args ...any) (*Policy, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read the policies: %w", err)
	}
	p, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[Policy])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the policies: %w", err)
	}
	return p, nil
}

// hash is the same for the same rules, in whatever order they were given: they have been checked.
func (r Rules) hash() (string, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("write the rules as JSON: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// instead is the policy in force, where a start with rules of this hash leaves it there, and why: they were applied
// before and have been replaced since, or have no limit where some are in force, as where a file was not found. Else it
// is nil. It needs the publishers' lock.
func (p *publication) instead(ctx context.Context, rules Rules, hash string) (newest *Policy, why string, err error) {
	if newest, err = InForce(ctx, p.tx); err != nil || newest == nil || newest.Hash == hash {
		return nil, "", err
	}
	var known, limits bool
	if err := p.tx.QueryRow(ctx, insteadSQL, hash).Scan(&known, &limits); err != nil {
		return nil, "", fmt.Errorf("read the policies: %w", err)
	}
	switch {
	case known:
		return newest, "a newer configuration has replaced them", nil
	case limits && len(rules.Limits) == 0:
		return newest, "they have no limit, and would take away those in force", nil
	}
	return nil, "", nil
}

const insteadSQL = `
SELECT EXISTS (SELECT FROM call_policies WHERE hash = $1), EXISTS (SELECT FROM call_limits WHERE queues <> '{}')`

// apply makes rules the policy in force. Those that are already change nothing. It needs the publishers' lock.
func (p *publication) apply(ctx context.Context, rules Rules, hash string) error {
	if err := p.bring(ctx, rules); err != nil {
		return err
	}
	if _, err := p.tx.Exec(ctx, applySQL, hash, p.by); err != nil {
		return fmt.Errorf("note the policy: %w", err)
	}
	return p.wakeDispatchers(ctx)
}

const applySQL = `
INSERT INTO call_policies AS p (hash, number, applied_at, applied_by)
SELECT $1, coalesce(max(number), 0) + 1, clock_timestamp(), $2 FROM call_policies
ON CONFLICT (hash) DO UPDATE
SET number = excluded.number, applied_at = excluded.applied_at, applied_by = excluded.applied_by
WHERE p.number < excluded.number - 1 -- else it is the newest`
