package admin

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/forecast"
	"github.com/callq/callq/internal/limit"
)

// slotsOf are the slots of the live workers with a label, and of the task that is asked about.
type slotsOf struct {
	Label string `db:"label"`
	Slots int64  `db:"slots"`
}

const slotsSQL = `
SELECT l.label, sum(w.slots)::bigint AS slots
FROM (SELECT DISTINCT unnest($1::text[]) AS label) l
JOIN callq.call_workers w ON callq.alive(w.heartbeat_at) AND (l.label = '' OR l.label = ANY(w.labels)) AND ($2::text IS NULL OR $2 = ANY(w.tasks))
GROUP BY l.label
HAVING sum(w.slots) > 0`

// takenSlots are slots of these workers that attempts of a queue have, which run for about as long.
type takenSlots struct {
	Label string  `db:"label"`
	Queue string  `db:"queue"`
	N     int64   `db:"n"`
	Ran   float64 `db:"ran"`     // seconds
	Left  float64 `db:"left_in"` // seconds, up to their deadlines
}

// What was handed over and has not started is about to take a slot.
const takenSQL = `
WITH alive AS (SELECT id, pool, tasks, labels FROM callq.call_workers WHERE callq.alive(heartbeat_at)),
of_label AS (
    SELECT DISTINCT l.label, w.pool
    FROM unnest($1::text[]) AS l (label)
    JOIN alive w ON (l.label = '' OR l.label = ANY(w.labels)) AND ($2::text IS NULL OR $2 = ANY(w.tasks))
), open AS (
    SELECT l.label, o.queue, o.deadline, greatest(extract(epoch FROM clock_timestamp() - o.started_at), 0) AS ran
    FROM of_label l JOIN callq.call_open o USING (pool)
    WHERE o.started_at IS NULL OR o.worker IN (SELECT id FROM alive)
)
SELECT label, queue, count(*) AS n, coalesce(avg(ran), 0)::float8 AS ran,
    coalesce(avg(extract(epoch FROM deadline - clock_timestamp())), 0)::float8 AS left_in
FROM open
GROUP BY label, queue, floor(2 * ln(coalesce(ran, 0) + 0.5))`

// ends is when they come free, from now on, where attempts of their queue run for so many seconds: if they have run longer, in as
// long as they are late. nil: none ended within a day; then it is when they must.
func (s *takenSlots) ends(usual *float64) time.Duration {
	seconds := s.Left
	if usual != nil {
		seconds = max(*usual-s.Ran, s.Ran-*usual, *usual/10)
	}
	return time.Duration(max(seconds, 0.01) * float64(time.Second))
}

// addSlots adds the slots of workers, as limits of the queues whose calls they take. Where all are taken and nobody knows when one
// comes free, nobody can say when a call starts that is due now.
func (o *outlook) addSlots(slots []slotsOf, taken []takenSlots, seconds map[string]*float64, call *callqueue.Record) {
	for _, s := range slots {
		world := forecast.Limit{Name: "slots of workers", Rate: limit.Rate{Units: s.Slots}}
		running, unknown, last := int64(0), true, time.Duration(0)
		for _, t := range taken {
			if t.Label == s.Label {
				usual := seconds[t.Queue]
				at := t.ends(usual)
				running, unknown, last = running+t.N, unknown && usual == nil, max(last, at)
				world.Frees = append(world.Frees, forecast.Free{At: at, Units: float64(t.N)})
			}
		}
		slices.SortFunc(world.Frees, func(a, b forecast.Free) int { return cmp.Compare(a.At, b.At) })
		world.Units, world.Room = float64(s.Slots), float64(max(0, s.Slots-running))
		full := running >= s.Slots
		for i, q := range o.queues {
			if q.Label != s.Label {
				continue
			}
			if o.Queues[i].Holds > 0 || full {
				o.Queues[i].Limits = append(o.Queues[i].Limits, len(o.Limits))
			}
			if full && unknown && (call == nil || call.RunAt.Sub(o.Now) < last) {
				o.never[q.Name] = fmt.Sprintf("all slots of its workers are taken, %d of %d, and nobody knows when one comes free", s.Slots, s.Slots)
			}
		}
		o.Limits = append(o.Limits, world)
	}
}
