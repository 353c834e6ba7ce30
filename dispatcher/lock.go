package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// lockedLimit is a limit's row as read under its lock.
type lockedLimit struct {
	Name          string        `db:"name"`
	Units         int64         `db:"rate"`
	Window        time.Duration `db:"window_size"` // 0: a concurrency limit
	Shape         limit.Shape   `db:"shape"`
	PerKey        bool          `db:"per_key"`
	Overrides     bool          `db:"overrides"` // some keys have another rate
	CountCost     bool          `db:"count_cost"`
	ConfigRate    *int64        `db:"config_rate"` // while an operator has set another
	ConfigShape   *limit.Shape  `db:"config_shape"`
	Anchor        limit.Anchor  `db:"anchor"` // "": as the task has it
	Slack         time.Duration `db:"slack"`
	SendWithin    time.Duration `db:"send_within"`
	UnderWay      time.Duration `db:"under_way"` // the longest from a start to its until
	Epoch         string        `db:"epoch"`
	MissingUntil  *time.Time    `db:"missing_until"`
	KnownAt       *time.Time    `db:"known_at"`
	KnownLess     int64         `db:"known_less"`
	CompleteSince *time.Time    `db:"complete_since"`
}

func (l lockedLimit) rate() limit.Rate {
	return limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}
}

// most is what a call may cost: dearer ones can never be made. While an operator has set another rate than the
// configuration's, they wait for either.
func (l lockedLimit) most() int64 {
	most := l.rate().Most()
	if l.ConfigRate != nil && l.ConfigShape != nil {
		most = max(most, limit.Rate{Units: *l.ConfigRate, Shape: *l.ConfigShape}.Most())
	}
	return most
}

// lockedQueue is a queue's row and those of its limits, as read under their locks.
type lockedQueue struct {
	Name   string
	Label  string // only workers that carry it
	Hours  []string
	Served string // the key that was served last
	Batch  int64  // the number of the claim
	Limits []lockedLimit
	closes *time.Time // when its hours end, as the claim reckons it; nil: it stays open
}

// lockQueue locks the queue's rule and the rows of all its limits, in name order, and reads from
// them what is in force; last it locks the workers' room, which all claims share, and no claim waits for
// another while it holds that. It returns nil where
// the queue is gone, or, without wait, where another holds one of the locks.
func (d *Dispatcher) lockQueue(ctx context.Context, tx pgx.Tx, queue string, wait bool) (*lockedQueue, error) {
	queueSQL, limitsSQL := lockQueueSQL, lockLimitsSQL
	if !wait {
		queueSQL, limitsSQL = queueSQL+" SKIP LOCKED", limitsSQL+" SKIP LOCKED"
	}
	q := &lockedQueue{Name: queue}
	var names []string
	var settings pgx.Batch
	settings.Queue(claimSettingsSQL, strconv.FormatInt(d.claimWithin.Milliseconds(), 10))
	settings.Queue(queueSQL, queue).QueryRow(func(row pgx.Row) error { return row.Scan(&names, &q.Label, &q.Served, &q.Hours) })
	err := tx.SendBatch(ctx, &settings).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil // locked, or gone from the config meanwhile
	}
	if err != nil {
		return nil, fmt.Errorf("lock the queue: %w", err)
	}
	room := mutex{name: "room", wait: wait}
	var locks pgx.Batch
	locks.Queue(limitsSQL, names).Query(func(rows pgx.Rows) (err error) {
		q.Limits, err = pgx.CollectRows(rows, pgx.RowToStructByName[lockedLimit])
		return err
	})
	room.ask(&locks)
	locks.Queue(drawSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&q.Batch) })
	if err := tx.SendBatch(ctx, &locks).Close(); err != nil {
		return nil, fmt.Errorf("lock the limits: %w", err)
	}
	if !room.mine || len(q.Limits) != len(names) {
		return nil, nil
	}
	return q, nil
}

const claimSettingsSQL = `
SELECT set_config('synchronous_commit', 'on', true),
    set_config('statement_timeout', $1, true), set_config('lock_timeout', $1, true),
    set_config('idle_in_transaction_session_timeout', $1, true)` // a frozen claim stops all others

// Not FOR SHARE: claims that overlap would keep a publisher waiting for ever.
const lockQueueSQL = `SELECT limits, on_label, served_key, hours FROM call_queues WHERE name = $1 FOR NO KEY UPDATE`

// By bytes, as Publish sorts them, whatever the database's collation.
const lockLimitsSQL = `
SELECT name, rate, window_size, shape, per_key, overrides <> '{}' AS overrides, count_cost, config_rate, config_shape, coalesce(anchor, '') AS anchor, slack,
    send_within, epoch, missing_until,
    known_at, known_less, complete_since,
    slack + greatest(send_within + interval '5 seconds', CASE WHEN anchor = 'start' THEN interval '0' ELSE coalesce(
        (SELECT max(q.timeout) + interval '1 second' FROM call_queues q WHERE q.limits @> ARRAY[l.name]), '0') END) AS under_way
FROM call_limits l
WHERE name = ANY($1)
ORDER BY name COLLATE "C"
FOR NO KEY UPDATE OF l`

// Under the lock of the room, or of no use (openfrom.go).
const drawSQL = `SELECT nextval('call_batch_seq')`

// uncounted says whether what one of the limits has used is not counted yet (open.go).
func uncounted(limits []lockedLimit) bool {
	return slices.ContainsFunc(limits, func(l lockedLimit) bool { return l.CompleteSince == nil })
}

// former says whether one of the limits has not entered the epoch.
func former(limits []lockedLimit, epoch string) bool {
	return slices.ContainsFunc(limits, func(l lockedLimit) bool { return l.Epoch != epoch })
}
