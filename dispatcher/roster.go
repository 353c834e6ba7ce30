package dispatcher

import (
	"context"
	"fmt"
	"slices"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/tasks"
	"github.com/jackc/pgx/v5"
)

// roster is which pools there are and how much each can take: the open attempts that nobody has
// started are kept to twice the free slots, or a backlog would flood Redis. While no worker
// lives a little is claimed all the same, for the pools last seen, so that work is ready for the
// first that comes. A claim reads it under a lock that all claims share, and counts it down.
type roster struct {
	pools    []*pool
	openFrom *int64 // the smallest batch of an open attempt; nil: there is none
}

type pool struct {
	Name      string   `db:"pool"`
	Tasks     []string `db:"tasks"`
	Labels    []string `db:"labels"`
	Workers   int      `db:"workers"`   // live, and with slots
	Paused    bool     `db:"paused"`    // those that live have none: their Asynq queue is paused
	Slots     int      `db:"slots"`     // of the smallest live worker
	Free      int      `db:"free"`      // slots of live workers that run nothing
	Unstarted int      `db:"unstarted"` // open attempts that nobody has started
	OpenFrom  *int64   `db:"open_from"` // the smallest batch of its open attempts; nil: it has none

	room int // attempts that may still be handed to it
}

const (
	roomWithoutWorkers = 200
	plenty             = 256
)

func readRoster(ctx context.Context, db ledger.DB, from int64) (*roster, error) {
	rows, err := db.Query(ctx, rosterSQL, from)
	if err != nil {
		return nil, fmt.Errorf("read the workers: %w", err)
	}
	pools, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByNameLax[pool])
	if err != nil {
		return nil, fmt.Errorf("read the workers: %w", err)
	}
	return newRoster(pools), nil
}

// newRoster gives the live pools their room; where none lives, those last seen and http's share
// roomWithoutWorkers evenly.
func newRoster(pools []*pool) *roster {
	var live []*pool
	var openFrom *int64
	unstarted := 0
	for _, p := range pools {
		if unstarted += p.Unstarted; openFrom == nil || p.OpenFrom != nil && *p.OpenFrom < *openFrom {
			openFrom = p.OpenFrom
		}
		if p.Workers > 0 {
			if !p.hasPlenty() {
				p.room = max(0, 2*p.Free-p.Unstarted)
			}
			live = append(live, p)
		}
	}
	if len(live) > 0 {
		return &roster{pools: live, openFrom: openFrom}
	}
	if !slices.ContainsFunc(pools, func(p *pool) bool { return slices.Contains(p.Tasks, tasks.HTTP) }) {
		pools = append(pools, &pool{Name: tasks.Pool([]string{tasks.HTTP}, nil), Tasks: []string{tasks.HTTP}})
	}
	pools = slices.DeleteFunc(pools, func(p *pool) bool { return p.Paused })
	for _, p := range pools {
		p.room = max(0, roomWithoutWorkers-unstarted) / len(pools)
	}
	return &roster{pools: pools, openFrom: openFrom}
}

// hasPlenty says that the pool's workers have enough for a while: then it gets no more, so that the next
// claim is one worth its while.
func (p *pool) hasPlenty() bool { return p.Unstarted >= plenty && 2*p.Unstarted > 3*p.Free }

// full is what a claim comes to that finds no room, or leaves none. Where all have plenty, a look that is
// woken is not worth reading all of call_open for.
func (r *roster) full() claimResult {
	result := claimResult{lookIn: claimFullRetry}
	if !slices.ContainsFunc(r.pools, func(p *pool) bool { return !p.hasPlenty() }) {
		result.blockedFor = claimFullRetry
	}
	return result
}

// on is the part of the roster that carries a label; all of it for none.
func (r *roster) on(label string) *roster {
	if label == "" {
		return r
	}
	part := &roster{}
	for _, p := range r.pools {
		if slices.Contains(p.Labels, label) {
			part.pools = append(part.pools, p)
		}
	}
	return part
}

// tasks are those that a pool with room handles.
func (r *roster) tasks() []string {
	var names []string
	for _, p := range r.pools {
		if p.room > 0 {
			names = append(names, p.Tasks...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// room is how many attempts may be handed over in all.
func (r *roster) room() int {
	sum := 0
	for _, p := range r.pools {
		sum += p.room
	}
	return sum
}

// can says whether a pool that handles a task has room.
func (r *roster) can(task string) bool {
	return slices.ContainsFunc(r.pools, func(p *pool) bool { return p.room > 0 && slices.Contains(p.Tasks, task) })
}

// choose picks one of the pools that handle a task, by lot and each as likely as it has room, and takes one place
// in it; nil: none has any. By lot, so that a call which one pool gave back comes to the others too.
func (r *roster) choose(task string, random func(n int64) int64) *pool {
	var chosen *pool
	room := 0
	for _, p := range r.pools {
		if p.room <= 0 || !slices.Contains(p.Tasks, task) {
			continue
		}
		if room += p.room; room == p.room || random(int64(room)) < int64(p.room) {
			chosen = p
		}
	}
	if chosen != nil {
		chosen.room--
		chosen.Unstarted++
	}
	return chosen
}

// poolFor is where a task's attempts go that were handed to a pool before: there, while it lives
// or no other can take them.
func (r *roster) poolFor(task, before string) string {
	other := before
	for _, p := range r.pools {
		if p.Name == before {
			return before
		}
		if slices.Contains(p.Tasks, task) {
			other = p.Name
		}
	}
	return other
}

// packing is how many attempts one message carries when a pool gets m of them. Each message costs a worker two trips to
// Redis and a statement, so few calls make a message a worker; many make four, so that the next goes to whoever is free.
func (p *pool) packing(m int) int {
	w := max(p.Workers, 1)
	k := max(min((m+w-1)/w, 8), min(m/(4*w), 128))
	return min(k, max(p.Slots/4, 1))
}

// A worker lives for 6 s after a beat: three beats missed. One without slots takes nothing: its Asynq queue is
// paused.
const rosterSQL = `
WITH workers AS (
    SELECT pool, tasks, labels, slots, beat_at > clock_timestamp() - interval '6 seconds' AS beats,
        beat_at > clock_timestamp() - interval '6 seconds' AND slots > 0 AS live
    FROM call_workers
), pools AS (
    SELECT pool, min(tasks) AS tasks, min(labels) AS labels, count(*) FILTER (WHERE live) AS workers,
        bool_or(beats) AND NOT bool_or(live) AS paused,
        min(slots) FILTER (WHERE live) AS slots, sum(slots) FILTER (WHERE live) AS all_slots
    FROM workers
    GROUP BY pool
), open AS (
    SELECT pool, count(*) FILTER (WHERE started_at IS NULL) AS unstarted,
        count(*) FILTER (WHERE started_at IS NOT NULL) AS started, min(batch) AS open_from
    FROM call_open
    WHERE batch >= $1
    GROUP BY pool
)
SELECT pool, coalesce(p.tasks, '{}') AS tasks, coalesce(p.labels, '{}') AS labels, coalesce(p.workers, 0) AS workers, coalesce(p.paused, false) AS paused, coalesce(p.slots, 0) AS slots,
    greatest(0, coalesce(p.all_slots, 0) - coalesce(o.started, 0)) AS free, coalesce(o.unstarted, 0) AS unstarted, o.open_from
FROM pools p
FULL JOIN open o USING (pool)`
