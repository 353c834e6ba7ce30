package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// Limit is a limit in force.
type Limit struct {
	Name string `json:"name" db:"name"`
	LimitRule
	LimitUse
	limitFacts
}

// LimitRule is what a limit allows.
type LimitRule struct {
	Rate       string           `json:"rate" db:"-"`
	Units      int64            `json:"units" db:"rate"`
	Window     time.Duration    `json:"window_ns" db:"window_size"` // 0: units at once
	Shape      limit.Shape      `json:"shape" db:"shape"`           // {}: a sliding window
	PerKey     bool             `json:"per_key" db:"per_key"`
	Overrides  map[string]int64 `json:"overrides" db:"overrides"` // keys that have other units
	CountCost  bool             `json:"count_cost" db:"count_cost"`
	Config     *string          `json:"config" db:"-"` // the configuration's rate, while an override is in force
	Queues     []string         `json:"queues" db:"queues"`
	Anchor     string           `json:"anchor" db:"anchor"` // empty: start for the task http, finish for others
	Slack      time.Duration    `json:"slack_ns" db:"slack"`
	SendWithin time.Duration    `json:"send_within_ns" db:"send_within"`
	Hosts      []string         `json:"hosts" db:"hosts"`                // whose Retry-After closes it; none: anybody's
	RetryAfter time.Duration    `json:"retry_after_ns" db:"retry_after"` // for how long at most; 0: never
}

// LimitUse is what a limit's units are doing.
type LimitUse struct {
	Occupied   int64      `json:"occupied" db:"-"` // approximate; of the key that uses most
	Room       int64      `json:"room" db:"-"`
	State      string     `json:"state" db:"state"`
	ShutUntil  *time.Time `json:"shut_until" db:"shut_until"`
	PausedKeys int64      `json:"paused_keys" db:"paused_keys"` // that are paused alone
	ChangedAt  time.Time  `json:"changed_at" db:"applied_at"`
	ChangedBy  string     `json:"changed_by" db:"applied_by"`

	// Missing units count as used until MissingUntil: after a failover they may have been given out. If they are all that the
	// limit has, it is closed.
	Missing      int64      `json:"missing" db:"-"`
	MissingUntil *time.Time `json:"missing_until" db:"-"`

	// OpensAt is about when the next unit comes free; nil: there is room, or that is not known.
	OpensAt *time.Time `json:"opens_at" db:"-"`
}

// limitFacts is what the rest is computed from.
type limitFacts struct {
	MayArrive  *time.Time  `json:"-" db:"missing_until"` // until when missing units may arrive
	KnownAt    *time.Time  `json:"-" db:"known_at"`
	KnownLess  int64       `json:"-" db:"known_less"`
	Overridden *limit.Rate `json:"-" db:"config"` // the configuration's rate while an override is in force
	Now        time.Time   `json:"-" db:"now"`
	Key        string      `json:"-" db:"-"` // of a limit per key: that uses most, or was asked about
	next       *time.Time  // when a unit comes free, whether there is room or not
}

// Holds is what is in force, in the words of the audit.
func (l Limit) Holds() string {
	text := policy.Limit{
		Rate: l.rate(), PerKey: l.PerKey, Overrides: l.Overrides, CountCost: l.CountCost,
		Anchor: limit.Anchor(l.Anchor), Slack: l.Slack, SendWithin: l.SendWithin,
		Hosts: l.Hosts, RetryAfter: &l.RetryAfter,
	}.String()
	if l.Config != nil {
		text += " (set; config: " + *l.Config + ")"
	}
	return text
}

// Idle says that no queue uses it.
func (l Limit) Idle() bool { return len(l.Queues) == 0 }

// StateText says whether it is open, until when not, and whether keys are paused.
func (l Limit) StateText() string {
	text := l.stateUntil(Short(l.State))
	if l.State == "open" && l.Missing > 0 {
		text += ", but for " + l.missingText()
	}
	return text + keysPaused(l.PausedKeys)
}

func (l Limit) stateUntil(state string) string {
	if l.ShutUntil == nil {
		return state
	}
	return state + " until " + Instant(l.ShutUntil)
}

// LimitDetails is a limit with what became of it.
type LimitDetails struct {
	Limit
	History
}

// ReadLimit reads a limit by its name; nil: there is none.
func ReadLimit(ctx context.Context, db ledger.DB, name string) (*LimitDetails, error) {
	r := &reader{ctx: ctx, db: db}
	limits := r.limits([]string{name}, nil)
	if r.err != nil || len(limits) == 0 {
		return nil, r.err
	}
	d := &LimitDetails{limits[0], r.history("limit", name)}
	return d, r.err
}

// ReadLimits reads all limits, and of those per key what the key uses that uses most.
func ReadLimits(ctx context.Context, db ledger.DB) ([]Limit, error) {
	r := &reader{ctx: ctx, db: db}
	limits := r.limits(nil, nil)
	return limits, r.err
}

// limits reads the limits that are named (nil: all), and of those per key what this key uses; nil: that uses most.
func (r *reader) limits(names []string, key *string) []Limit {
	limits := list[Limit](r, "read limits", limitsSQL, names)
	for i := range limits {
		l := &limits[i]
		l.Rate = l.rate().String()
		if l.PerKey {
			l.Rate += ", per key"
		}
		if n := len(l.Overrides); n > 0 {
			l.Rate += fmt.Sprintf(" (%d of their own)", n)
		}
		if l.CountCost {
			l.Rate += ", by cost"
		}
		if l.Overridden != nil {
			l.Config = new(l.Overridden.String())
		}
	}
	r.count(limits, key)
	return limits
}

// A limit that left the configuration, or that no queue uses, is idle; its row stays for what was claimed under it.
const limitsSQL = `
SELECT l.name, l.rate, l.window_size, l.shape, l.per_key, l.overrides, l.count_cost,
    l.config, coalesce(l.anchor, '') AS anchor,
    l.slack, l.send_within, l.hosts, l.retry_after, l.queues, l.applied_at, l.applied_by,
    l.missing_until, l.known_at, l.known_less, clock_timestamp() AS now,
    CASE
    WHEN cardinality(l.queues) = 0 THEN 'idle: no queue uses it'
    WHEN p.name IS NOT NULL THEN 'paused: ' || p.reason
    WHEN l.epoch <> callq_epoch() THEN 'shut: Postgres failed over or was restored'
    WHEN l.complete_since IS NULL THEN 'shut: counting its usage'
    ELSE 'open' END AS state,
    CASE WHEN p.until < 'infinity' THEN p.until END AS shut_until,
    (SELECT count(*) FROM call_pauses k
     WHERE k.what = 'limit' AND k.name = l.name AND k.key <> '' AND k.until > clock_timestamp()) AS paused_keys
FROM call_limits l
LEFT JOIN call_pauses p ON p.what = 'limit' AND p.name = l.name AND p.key = '' AND p.until > clock_timestamp()
WHERE $1::text[] IS NULL OR l.name = ANY($1)
ORDER BY l.name`

// History is what became of a limit or queue.
type History struct {
	Pauses  []Pause  `json:"pauses"`  // that have not ended
	Changes []Change `json:"changes"` // the last, newest first
}

// Pause is a pause of all calls or of a key.
type Pause struct {
	What   string     `json:"-" db:"what"` // limit or queue
	Name   string     `json:"-" db:"name"`
	Key    string     `json:"key" db:"key"` // empty: all
	Until  *time.Time `json:"until" db:"until"`
	Reason string     `json:"reason" db:"reason"`
	At     time.Time  `json:"at" db:"at"`
	By     string     `json:"by" db:"by"`
}

// Change is an entry of the audit.
type Change struct {
	At     time.Time `json:"at" db:"at"`
	By     string    `json:"by" db:"by"`
	Change string    `json:"change" db:"change"`
}

// history reads what became of a limit or queue: what is "limit" or "queue".
func (r *reader) history(what, name string) History {
	return History{
		list[Pause](r, "read pauses", pausesSQL+` AND what = $1 AND name = $2 ORDER BY key LIMIT 1000`, what, name),
		list[Change](r, "read the audit", auditSQL, what, name),
	}
}

const pausesSQL = `
SELECT what, name, key, nullif(until, 'infinity') AS until, reason, at, by
FROM call_pauses
WHERE until > clock_timestamp()`

const auditSQL = `SELECT at, by, change FROM call_audit WHERE what = $1 AND name = $2 ORDER BY id DESC LIMIT 20`

// keysPaused is what a state adds where keys are paused alone.
func keysPaused(n int64) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", 1 key paused"
	}
	return fmt.Sprintf(", %d keys paused", n)
}
