package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5/pgxpool"
)

type limitRow struct {
	Name         string        `db:"name"`
	NewEpoch     bool          `db:"new_epoch"`
	Uncounted    bool          `db:"uncounted"`
	Set          bool          `db:"set"`
	Units        int64         `db:"rate"`
	Window       time.Duration `db:"window_size"`
	Shape        limit.Shape   `db:"shape"`
	MissingUntil *time.Time    `db:"missing_until"`
	KnownAt      *time.Time    `db:"known_at"`
	Now          time.Time     `db:"now"`
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
    complete_since IS NULL AS uncounted, config_rate IS NOT NULL AS set,
    rate, window_size, shape, missing_until, known_at, clock_timestamp() AS now
FROM call_limits
WHERE cardinality(queues) > 0
ORDER BY name`

func judgeLimits(rows []limitRow) (found []Finding) {
	for _, l := range rows {
		rate := limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}
		switch {
		case l.NewEpoch:
			found = append(found, Finding{
				Level: Problem,
				What:  fmt.Sprintf("limit %s is shut: Postgres failed over or was restored, and no claim has seen it since", l.Name),
				Fix:   "start a dispatcher; what is known to be used then counts as ever, and what was left counts as used once",
			})
		case l.Uncounted:
			found = append(found, Finding{
				Level: Problem, What: fmt.Sprintf("limit %s is shut: what it has used is not yet counted from the ledger", l.Name),
				Fix: "start a dispatcher, which counts it; that waits until attempts under its former rule have ended",
			})
		}
		if m := limit.MissingAt(rate, l.MissingUntil, l.KnownAt, l.Now, 0); m != nil && !l.NewEpoch {
			found = append(found, missing(l.Name, m, rate.Passed(m.Until, 0)))
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

// missing is of units that may have been given out, and nobody knows of.
func missing(name string, m *limit.Missing, until time.Time) Finding {
	at := until.UTC().Format("2006-01-02 15:04:05Z")
	found := Finding{
		Level: Problem,
		What: fmt.Sprintf("limit %s is shut until %s: of what was sent before, some may be missing (Postgres failed over or was "+
			"restored, or retention had removed it before the limit was as it is)", name, at),
		Fix: "nothing: it opens by itself; sooner, where you know what was sent: callq limits open " + name + " --reason …",
	}
	if !m.KnownAt.IsZero() {
		found.Level = Note
		found.What = fmt.Sprintf("what was left of limit %s at %s counts as used until %s: Postgres failed over or was restored, "+
			"and of what was given out last some may be missing", name, m.KnownAt.UTC().Format("2006-01-02 15:04:05Z"), at)
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
