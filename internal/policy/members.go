package policy

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// HeartbeatEvery is how often a live dispatcher writes its heartbeat. It may miss three (callq.alive).
const HeartbeatEvery = 2 * time.Second

// Member is a dispatcher process: a row of call_dispatchers, with the hash of the policy in its own file, for all to see which
// processes carry another file than the one in force.
type Member struct {
	ID   string // of this process's life
	Name string // host/pid
}

// NewMember names this process.
func NewMember() Member {
	host, _ := os.Hostname()
	name := fmt.Sprintf("%s/%d", host, os.Getpid())
	return Member{ID: fmt.Sprintf("%s-%x", name, rand.Uint32()), Name: name}
}

// Join makes the process a live member and applies its checked policy, with always even if it was applied before and replaced
// since, in one transaction. maxData is how many bytes of call_data enqueue_call accepts. Join returns the changes, or what is
// in force instead.
func (m Member) Join(
	ctx context.Context, pool schema.DB, p Policy, always bool, maxData int64,
) (changes []string, kept *Kept, err error) {
	changes, err = apply(ctx, pool, ledger.By(m.Name), func(ctx context.Context, a *application) (err error) {
		if !always {
			if kept, err = a.keep(ctx, p); err != nil {
				return err
			}
		}
		if kept == nil {
			if err := a.apply(ctx, p); err != nil {
				return err
			}
			if _, err := a.tx.Exec(ctx, noteMaxDataSQL, maxData); err != nil {
				return fmt.Errorf("note the bound of call_data: %w", err)
			}
		}
		_, err = a.tx.Exec(ctx, heartbeatSQL, m.ID, m.Name, p.hash()) // last, so that no wait ages it
		return err
	})
	return changes, kept, ledger.Wrap("apply limits and queues", err)
}

// The process that joined last decides. enqueue_call reads it.
const noteMaxDataSQL = `
INSERT INTO callq.call_meta AS m (name, position) VALUES ('max_data', $1)
ON CONFLICT (name) DO UPDATE SET position = excluded.position WHERE m.position IS DISTINCT FROM excluded.position`

// Heartbeat records that the process is alive, and which policy its file has. It returns the names of the live
// dispatchers whose file differs from what is in force. It takes at most HeartbeatEvery.
func (m Member) Heartbeat(ctx context.Context, pool schema.DB, p Policy) (others []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, HeartbeatEvery)
	defer cancel()
	if _, err := pool.Exec(ctx, heartbeatSQL, m.ID, m.Name, p.hash()); err != nil {
		return nil, fmt.Errorf("write the heartbeat: %w", err)
	}
	_, others, err = Dispatchers(ctx, pool)
	return others, err
}

const heartbeatSQL = `
INSERT INTO callq.call_dispatchers (id, name, policy, heartbeat_at) VALUES ($1, $2, $3, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET policy = excluded.policy, heartbeat_at = excluded.heartbeat_at`

// Leave removes the process's row, so that its heartbeats need not be missed first.
func (m Member) Leave(ctx context.Context, pool schema.DB) error {
	_, err := pool.Exec(ctx, `DELETE FROM callq.call_dispatchers WHERE id = $1`, m.ID)
	return ledger.Wrap("remove the dispatcher's row", err)
}

// Dispatchers reads the names of the live dispatchers, and of those of them whose file differs from what is in force.
func Dispatchers(ctx context.Context, db ledger.DB) (live, others []string, err error) {
	rows, _ := db.Query(ctx, dispatchersSQL)
	_, err = pgx.ForEachRow(rows, []any{&live, &others}, func() error { return nil })
	return live, others, ledger.Wrap("read the dispatchers", err)
}

const dispatchersSQL = `
SELECT coalesce(array_agg(d.name ORDER BY d.name), '{}'),
    coalesce(array_agg(d.name ORDER BY d.name) FILTER (WHERE d.policy IS DISTINCT FROM p.hash), '{}')
FROM callq.call_dispatchers d
LEFT JOIN (SELECT hash FROM callq.call_policies ORDER BY number DESC LIMIT 1) p ON true
WHERE callq.alive(d.heartbeat_at)`

// Applied is a policy that was applied. Table call_policies keeps the hash of each.
type Applied struct {
	Hash string    `json:"hash" db:"hash"`
	At   time.Time `json:"applied_at" db:"applied_at"`
	By   string    `json:"applied_by" db:"applied_by"`
}

// String is who applied it, and when.
func (a *Applied) String() string {
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

const effectiveSQL = `SELECT hash, applied_at, applied_by FROM callq.call_policies ORDER BY number DESC LIMIT 1`

// hash identifies a checked policy. The order in which its parts were given does not matter.
func (p Policy) hash() string {
	text, _ := json.Marshal(p) // none of its types can fail
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// Kept is why a start left the policy in force as it was.
type Kept struct {
	*Applied
	Why string
}

// keep returns the policy in force if a start with policy p must not replace it, else nil. That is so if p was replaced
// since: a crash in a rolling deployment turns nothing back. It is also so if p has no limits and some are in force, as when a
// file was not found.
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
SELECT EXISTS (SELECT FROM callq.call_policies WHERE hash = $1), EXISTS (SELECT FROM callq.call_limits WHERE queues <> '{}')`
