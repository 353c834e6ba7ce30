package policy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// HeartbeatEvery is how often a live dispatcher writes its heartbeat. It may miss three (callq_alive).
const HeartbeatEvery = 2 * time.Second

// Member is a dispatcher process: a row of call_dispatchers, with the hash of the policy in its own file.
// So everybody sees which processes carry another file than the one in force.
type Member struct {
	ID   string // of this process's life
	Name string // host/pid
}

// NewMember names this process.
func NewMember() Member {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	name := fmt.Sprintf("%s/%d", host, os.Getpid())
	return Member{ID: fmt.Sprintf("%s-%x", name, rand.Uint32()), Name: name}
}

// Join makes the process a live member and applies its checked policy, with always even if it was applied before and replaced
// since, in one transaction. maxData is how many bytes of call_data enqueue_call accepts. Join returns the changes, or what is
// in force instead.
func (m Member) Join(ctx context.Context, pool *pgxpool.Pool, p Policy, always bool, maxData int64) (
	changes []string, kept *Kept, err error,
) {
	changes, err = apply(ctx, pool, m.Name, func(ctx context.Context, a *application) (err error) {
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
		return m.write(ctx, a.tx, p) // last, so that no wait ages it
	})
	if err != nil {
		return nil, nil, fmt.Errorf("apply limits and queues: %w", err)
	}
	return changes, kept, nil
}

// The process that joined last decides. enqueue_call reads it.
const noteMaxDataSQL = `
INSERT INTO call_meta AS m (name, position) VALUES ('max_data', $1)
ON CONFLICT (name) DO UPDATE SET position = excluded.position WHERE m.position IS DISTINCT FROM excluded.position`

// Heartbeat says that the process is alive, and which policy its file has. It returns the names of the live
// dispatchers whose file differs from what is in force. It takes at most HeartbeatEvery.
func (m Member) Heartbeat(ctx context.Context, pool *pgxpool.Pool, p Policy) (others []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, HeartbeatEvery)
	defer cancel()
	if err := m.write(ctx, pool, p); err != nil {
		return nil, err
	}
	_, others, err = Dispatchers(ctx, pool)
	return others, err
}

func (m Member) write(ctx context.Context, db interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, p Policy,
) error {
	if _, err := db.Exec(ctx, heartbeatSQL, m.ID, m.Name, p.hash()); err != nil {
		return fmt.Errorf("write the heartbeat: %w", err)
	}
	return nil
}

const heartbeatSQL = `
INSERT INTO call_dispatchers (id, name, policy, heartbeat_at) VALUES ($1, $2, $3, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET policy = excluded.policy, heartbeat_at = excluded.heartbeat_at`

// Leave removes the process's row, so that nobody has to wait for missed heartbeats.
func (m Member) Leave(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, `DELETE FROM call_dispatchers WHERE id = $1`, m.ID); err != nil {
		return fmt.Errorf("remove the dispatcher's row: %w", err)
	}
	return nil
}

// Dispatchers reads the names of the live dispatchers, and of those of them whose file differs from what is in force.
func Dispatchers(ctx context.Context, db ledger.DB) (live, others []string, err error) {
	type names struct{ Live, Others []string }
	all, err := collect(ctx, db, pgx.RowToStructByPos[names], dispatchersSQL)
	if err != nil {
		return nil, nil, fmt.Errorf("read the dispatchers: %w", err)
	}
	return all[0].Live, all[0].Others, nil
}

const dispatchersSQL = `
SELECT coalesce(array_agg(d.name ORDER BY d.name), '{}'),
    coalesce(array_agg(d.name ORDER BY d.name) FILTER (WHERE d.policy IS DISTINCT FROM p.hash), '{}')
FROM call_dispatchers d
LEFT JOIN (SELECT hash FROM call_policies ORDER BY number DESC LIMIT 1) p ON true
WHERE callq_alive(d.heartbeat_at)`
