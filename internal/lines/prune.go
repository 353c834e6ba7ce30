package lines

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// What ended while it waited leaves its line when a claim passes it. Where a queue is paused or blocked, or no
// worker takes its calls, no claim does: there it is taken out (Crowded, Prune). So is what ended while it was
// scheduled, out of the news (CrowdedNews, PruneNews).

const (
	crowdFrom   = 10_000 // calls in a queue's lines, below which it does not matter how many have ended
	samplePages = 24     // of the table, about, that are read to see what has ended
	sampleMost  = 40     // chunks, or rows of news, of a queue that are looked at there
	sampleLeast = 8      // calls of it: of fewer nothing is said
)

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Crowded returns the queues that have many calls in line of which most seem to have ended: of a sample, at
// least half. Where it misses one it may find it the next time. It needs no lock.
func Crowded(ctx context.Context, db querier) ([]string, error) {
	return crowded(ctx, db, largeSQL, crowdedSQL)
}

func crowded(ctx context.Context, db querier, largeSQL, crowdedSQL string) ([]string, error) {
	var queues []string
	var pages int64
	if err := db.QueryRow(ctx, largeSQL, crowdFrom).Scan(&queues, &pages); err != nil {
		return nil, fmt.Errorf("look for long lines: %w", err)
	}
	if len(queues) == 0 || pages == 0 {
		return nil, nil
	}
	percent := min(100, 100*samplePages/float64(pages))
	rows, err := db.Query(ctx, crowdedSQL, queues, percent, sampleMost, sampleLeast)
	if err != nil {
		return nil, fmt.Errorf("look for ended calls in line: %w", err)
	}
	ended, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for ended calls in line: %w", err)
	}
	return ended, nil
}

// Only queues that are in force: the others have no row that could be locked.
const largeSQL = `
SELECT array_agg(t.queue), pg_relation_size('call_waiting') / current_setting('block_size')::int
FROM (SELECT queue FROM call_line_totals GROUP BY queue HAVING sum(calls) >= $1::bigint) t
CROSS JOIN LATERAL (SELECT FROM call_queues WHERE name = t.queue OFFSET 0) q`

// Of each chunk up to four calls speak for all that have not left it.
const crowdedSQL = `
WITH sample AS MATERIALIZED (
    SELECT queue, key, priority, task, seq, ids, row_number() OVER (PARTITION BY queue ORDER BY random()) AS n
    FROM call_waiting TABLESAMPLE SYSTEM ($2::real)
    WHERE queue = ANY($1)
), entries AS MATERIALIZED (
    SELECT s.queue, s.key, s.priority, s.task, r.ids[1 + r.calls * i / least(r.calls, 4)] AS id, r.calls / least(r.calls, 4)::float8 AS weight
    FROM sample s
    CROSS JOIN LATERAL (
        SELECT head, taken FROM call_lines WHERE queue = s.queue AND key = s.key AND priority = s.priority AND task = s.task OFFSET 0
    ) l
    CROSS JOIN LATERAL (SELECT s.ids[CASE s.seq WHEN l.head THEN l.taken ELSE 0 END + 1:] AS ids OFFSET 0) h
    CROSS JOIN LATERAL (SELECT h.ids, cardinality(h.ids) AS calls OFFSET 0) r
    CROSS JOIN LATERAL generate_series(0, least(r.calls, 4) - 1) AS i
    WHERE s.n <= $3 AND s.seq >= l.head
)` + mostlyEndedSQL

// mostlyEndedSQL gives the queues of which half of some entries at least have ended.
const mostlyEndedSQL = `
SELECT e.queue
FROM entries e
LEFT JOIN LATERAL (
    SELECT true AS waits FROM call_queue c
    WHERE c.id = e.id AND c.status IN ('new', 'error') AND ` + lineOfSQL + ` = (e.queue, e.key, e.priority, e.task)
    OFFSET 0
) q ON true
GROUP BY e.queue
HAVING count(*) >= $4 AND 2 * sum(e.weight) FILTER (WHERE q.waits IS NULL) >= sum(e.weight)
ORDER BY e.queue`

// Place is a chunk up to which a pass through a queue's lines has come.
type Place struct {
	Key      string `db:"key"`
	Priority int16  `db:"priority"`
	Task     string `db:"task"`
	Seq      int64  `db:"seq"`
}

// Pruned is what a step of a pass came to.
type Pruned struct {
	UpTo    *Place // where the next goes on; nil: the pass is through
	Removed int64  // calls
}

// Prune is a step of a pass through a queue's lines: it looks at up to most calls behind from (nil: from the
// first line on), and takes out those that do not wait in the line that they are found in. Whatever makes one
// wait again writes news of it, so none is lost. most is more than a chunk holds. The queue's row was locked by
// an earlier statement of tx: so all that was taken in before is seen.
func Prune(ctx context.Context, tx pgx.Tx, queue string, from *Place, most int) (Pruned, error) {
	var p Pruned
	at := Place{Priority: -1} // before all
	if from != nil {
		at = *from
	}
	var next Place
	var all bool
	err := tx.QueryRow(ctx, pruneSQL, pgx.StrictNamedArgs{
		"queue": queue, "key": at.Key, "priority": at.Priority, "task": at.Task, "seq": at.Seq, "most": most,
	}).Scan(&next.Key, &next.Priority, &next.Task, &next.Seq, &p.Removed, &all)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil
	}
	if err != nil {
		return Pruned{}, fmt.Errorf("take ended calls out of line: %w", err)
	}
	if !all {
		p.UpTo = &next
	}
	var rest pgx.Batch
	for _, l := range []Place{at, next} {
		rest.Queue(restSQL, queue, l.Key, l.Priority, l.Task)
	}
	if err := tx.SendBatch(ctx, &rest).Close(); err != nil {
		return Pruned{}, fmt.Errorf("remove what is left of a line: %w", err)
	}
	return p, nil
}

// pruneSQL reads chunks through their primary key, in its order. One that the limit cuts is left to the next
// step. A chunk of which calls ended is written anew, without those that had left it. A line keeps its head,
// though that chunk may be gone; one that is empty goes, for where much has ended hardly any is filled again.
const pruneSQL = `
WITH entries AS MATERIALIZED (
    SELECT l.line, w.chunk, w.key, w.priority, w.task, w.seq, w.size, l.calls, w.seq = l.head AS first,
        i.place, i.id, i.id IS NOT NULL AND (w.seq > l.head OR w.seq = l.head AND i.place > l.taken) AS here
    FROM (
        SELECT ctid AS chunk, key, priority, task, seq, ids, cardinality(ids) AS size FROM call_waiting
        WHERE queue = @queue AND (key, priority, task, seq) > (@key, @priority, @task, @seq)
        ORDER BY key, priority, task, seq
    ) w
    CROSS JOIN LATERAL (
        SELECT ctid AS line, calls, head, taken FROM call_lines
        WHERE queue = @queue AND key = w.key AND priority = w.priority AND task = w.task
        OFFSET 0
    ) l
    LEFT JOIN LATERAL unnest(w.ids) WITH ORDINALITY AS i (id, place) ON true
    LIMIT @most
), chunks AS MATERIALIZED (
    SELECT e.chunk, e.line, e.key, e.priority, e.task, e.seq, e.calls, e.first,
        count(*) FILTER (WHERE e.here AND q.waits IS NULL) AS gone,
        array_agg(e.id ORDER BY e.place) FILTER (WHERE e.here AND q.waits) AS ids
    FROM entries e
    LEFT JOIN LATERAL (
        SELECT true AS waits FROM call_queue c
        WHERE c.id = e.id AND c.status IN ('new', 'error') AND ` + lineOfSQL + ` = (@queue, e.key, e.priority, e.task)
        OFFSET 0
    ) q ON true
    GROUP BY e.chunk, e.line, e.key, e.priority, e.task, e.seq, e.calls, e.first, e.size
    HAVING count(*) >= e.size
), lines AS MATERIALIZED (
    SELECT line, task, calls, sum(gone) AS gone, bool_or(first AND (gone > 0 OR ids IS NULL)) AS cut
    FROM chunks
    GROUP BY line, task, calls
), emptied AS (
    DELETE FROM call_waiting WHERE ctid = ANY (ARRAY(SELECT chunk FROM chunks WHERE ids IS NULL))
), kept AS (
    UPDATE call_waiting w
    SET ids = c.ids
    FROM (SELECT chunk, ids FROM chunks WHERE gone > 0 AND ids IS NOT NULL) c
    WHERE w.ctid = c.chunk
), dropped AS (
    DELETE FROM call_lines WHERE ctid = ANY (ARRAY(SELECT line FROM lines WHERE calls = gone))
), shorter AS (
    UPDATE call_lines l
    SET calls = l.calls - s.gone, taken = CASE WHEN s.cut THEN 0 ELSE l.taken END
    FROM (SELECT line, gone, cut FROM lines WHERE calls > gone AND (gone > 0 OR cut)) s
    WHERE l.ctid = s.line
), totals AS MATERIALIZED (
    SELECT c.total, c.calls, s.gone
    FROM (SELECT task, sum(gone) AS gone FROM lines GROUP BY task HAVING sum(gone) > 0) s
    CROSS JOIN LATERAL (SELECT ctid AS total, calls FROM call_line_totals WHERE queue = @queue AND task = s.task OFFSET 0) c
), done AS (
    DELETE FROM call_line_totals WHERE ctid = ANY (ARRAY(SELECT total FROM totals WHERE calls = gone))
), fewer AS (
    UPDATE call_line_totals t
    SET calls = t.calls - s.gone
    FROM (SELECT total, gone FROM totals WHERE calls <> gone) s
    WHERE t.ctid = s.total
)
SELECT key, priority, task, seq, (SELECT sum(gone)::bigint FROM chunks), (SELECT count(*) FROM entries) < @most
FROM chunks
ORDER BY key DESC, priority DESC, task DESC, seq DESC
LIMIT 1`

// A line that a step did not see as a whole may be gone, and chunks of which all had left be there still.
const restSQL = `
DELETE FROM call_waiting
WHERE ctid = ANY (ARRAY(SELECT ctid FROM call_waiting WHERE queue = $1 AND key = $2 AND priority = $3 AND task = $4 OFFSET 0))
  AND NOT EXISTS (SELECT FROM call_lines WHERE queue = $1 AND key = $2 AND priority = $3 AND task = $4)`
