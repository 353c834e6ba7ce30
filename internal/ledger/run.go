package ledger

import (
	"context"
	"maps"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// Member is an attempt of a run, as Reserve finds it.
type Member struct {
	CallID  int64            `db:"call_id"`
	Attempt int32            `db:"attempt"`
	Limits  []string         `db:"limits"`
	Keys    []string         `db:"keys"`
	Costs   []int64          `db:"costs"`
	Rooms   []*int64         `db:"rooms"` // see limit.Pace; nil: the limit does not pace it
	Gaps    []*time.Duration `db:"gaps"`
}

// Reserve keeps a run for one delivery of its message: all of its attempts that are open get the token, or none does, as another
// delivery has them. Only that token starts them. calls are the message's. To ask again with the same token is safe. It waits for locks.
func Reserve(ctx context.Context, db DB, worker string, token int64, calls []int64) ([]Member, error) {
	rows, _ := db.Query(ctx, reserveSQL, pgx.StrictNamedArgs{"worker": worker, "token": token, "calls": calls})
	members, err := pgx.CollectRows(rows, pgx.RowToStructByName[Member])
	return members, Wrap("reserve a run", err)
}

// The run is what the ledger says it is, whatever the message holds. Whoever comes second waits for the first row, and then finds all
// of them taken.
const reserveSQL = `
WITH run AS MATERIALIZED (
    SELECT DISTINCT batch, message_no
    FROM callq.call_open
    WHERE call_id = ANY(@calls::bigint[]) AND rooms IS NOT NULL AND epoch = (SELECT callq.epoch())
), locked AS MATERIALIZED (
    SELECT o.call_id
    FROM run r JOIN callq.call_open o ON o.batch = r.batch AND o.message_no = r.message_no
    WHERE (SELECT count(*) FROM run) = 1 AND (SELECT set_config('lock_timeout', '100ms', true)) = '100ms'
    ORDER BY o.call_id
    FOR NO KEY UPDATE OF o
)
UPDATE callq.call_open o
SET token = @token, worker = @worker
FROM locked l
WHERE o.call_id BETWEEN l.call_id AND l.call_id AND (o.token IS NULL OR o.token = @token)
RETURNING o.call_id, o.attempt, o.limits, o.keys, o.costs, o.rooms, o.gaps`

// Learn reads the rules of some limits.
func (c *Closer) Learn(ctx context.Context, db DB, names []string) error {
	rows, _ := db.Query(ctx, rulesSQL+` WHERE l.name = ANY($1)`, names)
	read, err := pgx.CollectRows(rows, pgx.RowToStructByPos[rule])
	rules := map[string]rule{}
	if known := c.rules.Load(); known != nil {
		maps.Copy(rules, *known)
	}
	for _, r := range read {
		rules[r.Name] = r
	}
	if err == nil {
		c.rules.Store(&rules)
	}
	return Wrap("read the limits of a run", err)
}

// Until is until when a closing occupies a limit's units, from its start, by the rules that this Closer last read; false: that is not
// known yet.
func (c *Closer) Until(closing Closing, name string) (until time.Duration, known bool) {
	rules := c.rules.Load()
	if rules == nil {
		return 0, false
	}
	r, is := (*rules)[name]
	if !is {
		return 0, false
	}
	at, proof := closing.until(closing.bounded(), r)
	return at.Sub(closing.Opened.From), proof != limit.NoProof
}
