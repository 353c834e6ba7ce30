package pools

import (
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// Reader reads the pools for one dispatcher. While somebody holds an old snapshot, Postgres keeps all heartbeats that workers
// have written since. So it reads the workers once in workersFor, and goes by what it knows of them in between. The zero value
// is ready.
type Reader struct {
	turnover turnover
	workers  []Pool    // pools, as far as their workers go
	until    time.Time // by a monotonic clock; then they are read again
}

const workersFor = time.Second

// Forget has the workers read the next time.
func (r *Reader) Forget() { r.until = time.Time{} }

// Handed notes that n attempts, whose claim is committed, go to a pool.
func (r *Reader) Handed(pool string, n int) { r.turnover.handed(pool, n) }

// Ask has a batch read the pools into to. No open attempt is of a batch smaller than openFrom; now is by a monotonic clock.
func (r *Reader) Ask(b *pgx.Batch, openFrom int64, now time.Time, to **Pools) {
	if !now.Before(r.until) {
		b.Queue(workersSQL).Query(func(rows pgx.Rows) (err error) {
			r.workers, err = pgx.CollectRows(rows, pgx.RowToStructByName[Pool])
			if r.Forget(); slices.ContainsFunc(r.workers, func(p Pool) bool { return p.Workers > 0 }) {
				r.until = now.Add(workersFor)
			}
			return ledger.Wrap("read the workers", err)
		})
	}
	b.Queue(openSQL, openFrom).Query(func(rows pgx.Rows) error {
		open, err := pgx.CollectRows(rows, pgx.RowToStructByName[openAttempts])
		if err != nil {
			return ledger.Wrap("count the open attempts", err)
		}
		list, from := merge(r.workers, open)
		r.turnover.count(list, now)
		*to = withCapacity(list)
		(*to).OpenFrom = from
		return nil
	})
}

// openAttempts are the open attempts that were handed to a pool.
type openAttempts struct {
	Pool      string
	Started   int
	Unstarted int
	InRuns    int
	OpenFrom  int64 // their smallest batch
}

// merge returns the pools of workers and those of open attempts, and the smallest batch of these; nil: there are none.
func merge(workers []Pool, open []openAttempts) (list []*Pool, openFrom *int64) {
	of := map[string]*Pool{}
	for _, p := range workers {
		of[p.Name] = &p
		list = append(list, &p)
	}
	for _, o := range open {
		if openFrom == nil || o.OpenFrom < *openFrom {
			openFrom = &o.OpenFrom
		}
		p := of[o.Pool]
		if p == nil {
			p = &Pool{Name: o.Pool}
			list = append(list, p)
		}
		p.Started, p.Unstarted, p.InRuns = o.Started, o.Unstarted, o.InRuns
	}
	return list, openFrom
}

const workersSQL = `
SELECT pool, min(tasks) AS tasks, min(labels) AS labels, count(*) FILTER (WHERE live) AS workers,
    coalesce(min(slots) FILTER (WHERE live), 0) AS slots, coalesce(sum(slots) FILTER (WHERE live), 0) AS all_slots
FROM (SELECT *, callq.alive(heartbeat_at) AS live FROM callq.call_workers) w
GROUP BY pool`

// What a run has started ahead of its turn has no slot yet.
const openSQL = `
SELECT pool, count(*) FILTER (WHERE started_at < CASE WHEN rooms IS NULL THEN 'infinity' ELSE clock_timestamp() END) AS started,
    count(*) FILTER (WHERE started_at IS NULL AND rooms IS NULL) AS unstarted,
    count(*) FILTER (WHERE started_at IS NULL AND rooms IS NOT NULL) AS in_runs,
    min(batch) AS open_from
FROM callq.call_open
WHERE batch >= $1
GROUP BY pool`
