package dispatcher

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// occupied is what a limit's units are doing at a moment.
type occupied struct {
	Name     string     `db:"name"`
	Occupied int64      `db:"occupied"`
	FreedAt  *time.Time `db:"freed_at"` // the earliest until of an occupied unit; nil: none has one yet
}

// headroom is how many calls all of the limits admit at now, and for how long no more can come
// free once those are taken. It needs the limits' locks.
func (d *Dispatcher) headroom(ctx context.Context, tx pgx.Tx, limits []lockedLimit, now time.Time) (int, time.Duration, error) {
	if len(limits) == 0 {
		return math.MaxInt, 0, nil
	}
	names, since := make([]string, len(limits)), make([]time.Time, len(limits))
	for i, l := range limits {
		names[i] = l.Name
		since[i] = now.Add(-l.Window - limit.Margin(l.Window) - d.clock.Gained(now, l.Window))
	}
	rows, err := tx.Query(ctx, occupiedSQL, names, since)
	if err != nil {
		return 0, 0, fmt.Errorf("count occupied units: %w", err)
	}
	counted, err := pgx.CollectRows(rows, pgx.RowToStructByName[occupied])
	if err != nil {
		return 0, 0, fmt.Errorf("count occupied units: %w", err)
	}
	if len(counted) != len(limits) {
		return 0, 0, fmt.Errorf("count occupied units: %d of %d limits answered", len(counted), len(limits))
	}
	uses := make(map[string]occupied, len(counted))
	for _, c := range counted {
		uses[c.Name] = c
	}
	room, wait := int64(math.MaxInt), time.Duration(0)
	for _, l := range limits {
		use := limit.Use{Rate: l.Rate, Window: l.Window, Occupied: uses[l.Name].Occupied}
		if at := uses[l.Name].FreedAt; at != nil {
			use.Freed = *at
		}
		if r := use.Room(); r <= room {
			room = r
			wait = max(minGap, use.NextLook(now, d.clock.Gained(now, l.Window)).Sub(now))
		}
	}
	return int(room), wait, nil
}

// occupiedSQL reads open attempts and usage in one statement, and calls nothing that would take a
// snapshot of its own: a closing that commits between two readings would be missed by both. An
// attempt that has not started, or whose limit is anchored at the finish, is occupied for as long
// as it is open; so is one of an older epoch, which will be charged at the time of its sweep. $2
// is, per limit, now - W - margin: what has a later until still counts. Buckets are labelled with
// their end. The unit of an open attempt can come free from its start on where that bounds it; else
// its until is yet to come, and so is when it comes free.
const occupiedSQL = `
WITH asked AS (
    SELECT l.name, a.since, l.slack, l.anchor, l.epoch
    FROM unnest($1::text[], $2::timestamptz[]) AS a (name, since)
    JOIN call_limits l ON l.name = a.name
), open AS (
    SELECT a.name, a.since, u.cost, o.started_at + o.send_within + a.slack AS until,
        CASE WHEN o.epoch = a.epoch AND coalesce(a.anchor, CASE o.task WHEN 'http' THEN 'start' ELSE 'finish' END) = 'start'
             THEN o.started_at END AS bounded_from
    FROM call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.costs) AS u (name, cost)
    JOIN asked a ON a.name = u.name
    WHERE o.limits && $1
), units AS (
    SELECT name, sum(cost) AS cost, min(bounded_from) AS freed_at
    FROM open
    WHERE bounded_from IS NULL OR until > since
    GROUP BY name
    UNION ALL
    SELECT a.name, sum(u.used), min(u.bucket)
    FROM asked a JOIN call_usage u ON u.limit_name = a.name AND u.bucket > a.since
    GROUP BY a.name
)
SELECT a.name, coalesce(sum(u.cost), 0)::bigint AS occupied, min(u.freed_at) AS freed_at
FROM asked a LEFT JOIN units u ON u.name = a.name
GROUP BY a.name`
