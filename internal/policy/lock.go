package policy

import (
	"errors"
	"strconv"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// LockedLimit is a limit's row as read under its lock.
type LockedLimit struct {
	Name       string           `db:"name"`
	Units      int64            `db:"rate"`
	Window     time.Duration    `db:"window_size"` // 0: a concurrency limit
	Shape      limit.Shape      `db:"shape"`
	Config     *limit.Rate      `db:"config"` // the configuration's rate while an override is in force; else nil
	PerKey     bool             `db:"per_key"`
	CountCost  bool             `db:"count_cost"`
	Anchor     limit.Anchor     `db:"anchor"` // "": as the task has it
	SendWithin time.Duration    `db:"send_within"`
	Overrides  map[string]int64 `db:"overrides"`  // units of keys that have another rate
	UnderWay   time.Duration    `db:"under_way"`  // the longest from a start to its until
	EvenUntil  *time.Time       `db:"even_until"` // until then calls go evenly; nil: they need not
	Shares     limit.Shares     `db:"shares"`     // nil: it has none
	Queues     []string         `db:"queues"`     // that use it
	LimitUsage
}

// LimitUsage is what is known of a limit's usage.
type LimitUsage struct {
	Epoch         string     `db:"epoch"`          // the last that it entered
	CompleteSince *time.Time `db:"complete_since"` // nil: not counted yet
	MissingUntil  *time.Time `db:"missing_until"`  // nil: nothing is missing
	KnownAt       *time.Time `db:"known_at"`
	KnownLess     int64      `db:"known_less"`
}

// Rate is the limit's rate in force.
func (l LockedLimit) Rate() limit.Rate {
	return limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}
}

// MaxCost is what a call may cost: a dearer one can never be made. While an override is in force, calls wait for
// whichever rate allows more.
func (l LockedLimit) MaxCost() int64 {
	if l.Config == nil {
		return l.Rate().Most()
	}
	return max(l.Rate().Most(), l.Config.Most())
}

// Missing is what may have been given out of the limit and is not known, if it may still count; else nil.
func (l LockedLimit) Missing(now time.Time, gained time.Duration) *limit.Missing {
	return limit.MissingAt(l.Rate(), l.MissingUntil, l.KnownAt, now, gained)
}

// Gained is what the limit's window is widened by: what Postgres's clock gained while anything that still counts was under way.
func (l LockedLimit) Gained(gains limit.Gains, now time.Time) time.Duration {
	return gains.Within(now, l.Window+limit.Margin(l.Window)+l.UnderWay)
}

// LockedQueue is a queue's row and those of its limits, as read under their locks.
type LockedQueue struct {
	Name       string
	Locked     bool   // with its limits and the capacity
	Label      string // only workers that carry it
	Hours      string
	Served     string           // the key that was served last
	Needs      map[string]int64 // units of budgets that each call draws
	Capped     bool             // so many calls may wait (call_caps)
	Batch      int64            // the number of the claim
	LimitNames []string
	Limits     []LockedLimit // in the order of the locks
}

// LockForClaim has a batch lock a queue and all its limits, in name order, and read from them what is in force. Last it locks the
// workers' capacity: a claim that holds it waits for no other. within bounds every statement of the transaction. The queue is
// Locked unless it is gone or, without wait, another transaction holds one of the locks.
func LockForClaim(b *pgx.Batch, queue string, wait bool, within time.Duration) *LockedQueue {
	skip := " SKIP LOCKED"
	if wait {
		skip = ""
	}
	q := &LockedQueue{Name: queue, Locked: true}
	got := func(err error) error { // an error would have pgx prepare all of the batch anew
		if errors.Is(err, pgx.ErrNoRows) {
			q.Locked, err = false, nil
		}
		return err
	}
	b.Queue(LockQueueSQL+skip, queue, strconv.FormatInt(within.Milliseconds(), 10)).QueryRow(func(row pgx.Row) error {
		return got(row.Scan(&q.LimitNames, &q.Label, &q.Served, &q.Hours, &q.Needs, &q.Capped))
	})
	b.Queue(LockLimitsSQL+skip, queue).Query(func(rows pgx.Rows) (err error) {
		q.Limits, err = pgx.CollectRows(rows, pgx.RowToStructByName[LockedLimit])
		q.Locked = q.Locked && len(q.Limits) == len(q.LimitNames)
		return err
	})
	b.Queue(lockCapacitySQL + skip).QueryRow(func(row pgx.Row) error {
		err := row.Scan(nil)
		if wait && errors.Is(err, pgx.ErrNoRows) { // else it may be locked
			return errNoLock
		}
		return got(err)
	})
	return q
}

var errNoLock = errors.New("call_locks lacks a row: INSERT INTO callq.call_locks (name) VALUES ('apply'), ('capacity') ON CONFLICT DO NOTHING")

// LockQueueSQL first bounds the transaction ($2, in ms): a frozen claim stops all others. It does not lock FOR SHARE: claims that
// overlap would keep an applier waiting for ever.
const LockQueueSQL = `
SELECT limits, label, served_key, hours, nullif(needs, '{}'), EXISTS (SELECT FROM callq.call_caps WHERE queue = name)
FROM callq.call_queues
WHERE name = $1
  AND (SELECT set_config('synchronous_commit', 'on', true)) = 'on'
  AND (SELECT count(set_config(name, $2, true))
       FROM unnest('{statement_timeout, lock_timeout, idle_in_transaction_session_timeout}'::text[]) AS s (name)) = 3
FOR NO KEY UPDATE`

// LockLimitsSQL locks the limits of the queue that is locked, in byte order, as Apply does, whatever the collation of the
// database. The timeouts may be older than the lock by its wait, 5 s at most, which limit.LateMostSQL covers.
const LockLimitsSQL = `
SELECT name, rate, window_size, shape, config, per_key, count_cost, coalesce(anchor, '') AS anchor, send_within,
    overrides, epoch, complete_since, missing_until, known_at, known_less, even_until, nullif(shares, '{}') AS shares, queues,
    ` + UnderWaySQL + ` AS under_way
FROM callq.call_limits l
WHERE name = ANY (ARRAY(SELECT unnest(limits) FROM callq.call_queues WHERE name = $1))
ORDER BY name COLLATE "C"
FOR NO KEY UPDATE OF l`

// UnderWaySQL is LockedLimit.UnderWay of a limit l.
const UnderWaySQL = `l.slack + greatest(l.send_within + ` + limit.LateMostSQL + `, CASE WHEN l.anchor = 'start' THEN interval '0' ELSE coalesce(
        (SELECT max(q.timeout) + interval '6 seconds' FROM callq.call_queues q WHERE q.limits @> ARRAY[l.name]), '0') END)`

// Only callq's daemons may lock the row, while any login may hold an advisory lock for as long as it likes. The lock is written
// into the row in place, so it leaves nothing dead.
const lockCapacitySQL = `SELECT name FROM callq.call_locks WHERE name = 'capacity' FOR UPDATE`

// Draw has a batch draw the claim's number. The claim holds the capacity, so numbers are in the order of claims (low-water mark).
func (q *LockedQueue) Draw(b *pgx.Batch) {
	b.Queue(`SELECT nextval('callq.call_batch_seq')`).QueryRow(func(row pgx.Row) error { return row.Scan(&q.Batch) })
}
