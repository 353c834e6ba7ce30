package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

type limitRow struct {
	Name      string     `db:"name"`
	NewEpoch  bool       `db:"new_epoch"`
	ShutUntil *time.Time `db:"shut_until"`
	Uncounted bool       `db:"uncounted"`
	Set       bool       `db:"set"`
}

// limits are those that let nothing through, and those under which another rate holds than the file's.
func limits(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	rows, err := collect[limitRow](ctx, pool, limitsSQL)
	if err != nil {
		return nil, err
	}
	return judgeLimits(rows), nil
}

// A limit that no queue uses is idle.
const limitsSQL = `
SELECT name, epoch <> callq_epoch() AS new_epoch,
    CASE WHEN shut_until > clock_timestamp() THEN shut_until END AS shut_until,
    complete_since IS NULL AS uncounted, config_rate IS NOT NULL AS set
FROM call_limits
WHERE cardinality(queues) > 0
ORDER BY name`

func judgeLimits(rows []limitRow) (found []Finding) {
	for _, l := range rows {
		switch {
		case l.NewEpoch:
			found = append(found, Finding{
				Level: Problem,
				What:  fmt.Sprintf("limit %s is shut: Postgres failed over or was restored, and no claim has seen it since", l.Name),
				Fix:   "start a dispatcher; the limit opens a window later, for what the old server gave out may still arrive",
			})
		case l.ShutUntil != nil:
			found = append(found, Finding{
				Level: Problem,
				What: fmt.Sprintf("limit %s is shut until %s, for Postgres failed over or was restored",
					l.Name, l.ShutUntil.UTC().Format("2006-01-02 15:04:05Z")),
				Fix: "nothing: it opens by itself, when nothing that the old server gave out can count any more",
			})
		case l.Uncounted:
			found = append(found, Finding{
				Level: Problem, What: fmt.Sprintf("limit %s is shut: what it has used is not yet counted from the ledger", l.Name),
				Fix: "start a dispatcher, which counts it; that waits until attempts under its former rule have ended, " +
					"and for as long as retention left gaps within its window",
			})
		}
		if l.Set {
			found = append(found, Finding{
				Level: Note, What: fmt.Sprintf("limit %s has a rate that an operator set, not the configuration's", l.Name),
				Fix: "callq limits reset " + l.Name,
			})
		}
	}
	return found
}

type pauseRow struct {
	What   string     `db:"what"`
	Name   string     `db:"name"`
	Until  *time.Time `db:"until"`
	Keys   int64      `db:"keys"`
	Reason string     `db:"reason"`
}

// pauses are noted: they are easily forgotten.
func pauses(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	rows, err := collect[pauseRow](ctx, pool, pausesSQL)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rows {
		what, fix := fmt.Sprintf("%s %s is paused (%s)", r.What, r.Name, short(r.Reason)), fmt.Sprintf("callq %ss resume %s",
			r.What, r.Name)
		if r.Keys > 0 {
			what, fix = fmt.Sprintf("%d keys of %s %s are paused", r.Keys, r.What, r.Name), fix+" --key …"
		}
		if r.Until != nil {
			what += " until " + r.Until.UTC().Format("2006-01-02 15:04:05Z")
		}
		found = append(found, Finding{Level: Note, What: what, Fix: fix})
	}
	return found, nil
}

const pausesSQL = `
SELECT what, name, nullif(max(until), 'infinity') AS until,
    count(*) FILTER (WHERE key <> '') AS keys, max(reason) AS reason
FROM call_pauses WHERE until > clock_timestamp()
GROUP BY what, name, key = ''
ORDER BY what, name, key = '' DESC
LIMIT 10`
