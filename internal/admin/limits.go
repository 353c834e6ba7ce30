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
	Occupied   int64      `json:"occupied" db:"occupied"` // approximate; of the key that uses most
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
	FreedAt      *time.Time     `json:"-" db:"freed_at"` // the earliest until of an occupied unit
	MayArrive    *time.Time     `json:"-" db:"missing_until"`
	KnownAt      *time.Time     `json:"-" db:"known_at"`
	KnownLess    int64          `json:"-" db:"known_less"`
	Former       int64          `json:"-" db:"former"` // occupied units that were open when some went missing
	ConfigUnits  *int64         `json:"-" db:"config_rate"`
	ConfigWindow *time.Duration `json:"-" db:"config_window"`
	ConfigShape  *limit.Shape   `json:"-" db:"config_shape"`
	Key          *string        `json:"-" db:"key"` // that uses most, if the limit is per key
	Now          time.Time      `json:"-" db:"now"`
	next         *time.Time     // when a unit comes free, whether there is room or not
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
	Pauses  []Pause  `json:"pauses"`
	Changes []Change `json:"changes"` // newest first
}

// ReadLimit reads a limit by its name; nil: there is none.
func ReadLimit(ctx context.Context, db ledger.DB, name string) (*LimitDetails, error) {
	limits, err := readLimitsFor(ctx, db, []string{name}, nil)
	if err != nil || len(limits) == 0 {
		return nil, err
	}
	d := &LimitDetails{Limit: limits[0]}
	if d.Pauses, err = ReadPauses(ctx, db, "limit", name); err != nil {
		return nil, err
	}
	d.Changes, err = ReadChanges(ctx, db, "limit", name)
	return d, err
}

// ReadLimits reads all limits, and of those per key what the key uses that uses most.
func ReadLimits(ctx context.Context, db ledger.DB) ([]Limit, error) {
	return readLimitsFor(ctx, db, nil, nil)
}

// readLimitsFor reads the limits that are named (nil: all), and of those per key what this key uses.
func readLimitsFor(ctx context.Context, db ledger.DB, names []string, key *string) ([]Limit, error) {
	since, err := calendarSince(ctx, db)
	if err != nil {
		return nil, err
	}
	limits, err := collect[Limit](ctx, db, "read limits", limitsSQL, names, key, since.names, since.at)
	if err != nil {
		return nil, err
	}
	charges, err := readCharges(ctx, db, limits, key)
	if err != nil {
		return nil, err
	}
	for i := range limits {
		l := &limits[i]
		if key != nil && l.PerKey {
			l.Key = key
		}
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
		if l.ConfigUnits != nil && l.ConfigWindow != nil && l.ConfigShape != nil {
			config := limit.Rate{Units: *l.ConfigUnits, Window: *l.ConfigWindow, Shape: *l.ConfigShape}.String()
			l.Config = &config
		}
		missing, err := l.missing(ctx, db)
		if err != nil {
			return nil, err
		}
		l.reckon(charges[l.Name], missing)
		inUTC(&l.ChangedAt, l.ShutUntil, l.MissingUntil, l.OpensAt)
	}
	return limits, nil
}

// As the claim counts what is occupied, but without locks. A limit that left the configuration, or
// that no queue uses, is idle; its row stays for what was claimed under it.
const limitsSQL = `
WITH marks AS (
    SELECT l.name, l.per_key, l.slack, l.anchor, l.epoch, coalesce(c.since, clock_timestamp() - l.window_size * 1.001) AS since
    FROM call_limits l
    LEFT JOIN unnest($3::text[], $4::timestamptz[]) AS c (name, since) ON c.name = l.name
    WHERE $1::text[] IS NULL OR l.name = ANY($1)
), open AS (
    SELECT u.name, u.key, sum(u.cost) AS cost, sum(u.cost) FILTER (WHERE o.epoch <> m.epoch) AS former,
        min(greatest(o.started_at, o.acked_at)) FILTER (WHERE m.until < 'infinity') AS freed_at
    FROM call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    CROSS JOIN LATERAL (
        SELECT *, callq_occupied_until(o.task, o.epoch, o.started_at, o.send_within, o.acked_at, anchor, epoch, slack) AS until
        FROM marks WHERE name = u.name
    ) m
    WHERE m.until > m.since AND ($2::text IS NULL OR u.key = CASE WHEN m.per_key THEN $2 ELSE '' END)
    GROUP BY u.name, u.key
), used AS (
    SELECT u.limit_name AS name, u.key, sum(u.used) AS cost, sum(u.used) FILTER (WHERE u.shard < 0) AS former, min(u.bucket) AS freed_at
    FROM call_usage u JOIN marks m ON m.name = u.limit_name AND u.bucket > m.since
    WHERE $2::text IS NULL OR u.key = CASE WHEN m.per_key THEN $2 ELSE '' END
    GROUP BY u.limit_name, u.key
), occupied AS (
    SELECT DISTINCT ON (name) name, key, coalesce(o.cost, 0) + coalesce(u.cost, 0) AS cost,
        coalesce(o.former, 0) + coalesce(u.former, 0) AS former, least(o.freed_at, u.freed_at) AS freed_at
    FROM open o FULL JOIN used u USING (name, key)
    ORDER BY name, cost DESC
)
SELECT l.name, l.rate, l.window_size, l.shape, l.per_key, l.overrides, l.count_cost,
    l.config_rate, l.config_window, l.config_shape, coalesce(l.anchor, '') AS anchor,
    l.slack, l.send_within, l.hosts, l.retry_after, l.queues, l.applied_at, l.applied_by,
    coalesce(o.cost, 0)::bigint AS occupied, coalesce(o.former, 0)::bigint AS former, o.freed_at,
    l.missing_until, l.known_at, l.known_less, CASE WHEN l.per_key THEN o.key END AS key, clock_timestamp() AS now,
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
JOIN marks m ON m.name = l.name
LEFT JOIN occupied o ON o.name = l.name
LEFT JOIN call_pauses p ON p.what = 'limit' AND p.name = l.name AND p.key = '' AND p.until > clock_timestamp()
ORDER BY l.name`
