package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// Limit is a limit in force.
type Limit struct {
	Name       string           `json:"name" db:"name"`
	Rate       string           `json:"rate" db:"-"`
	Units      int64            `json:"units" db:"rate"`
	Window     time.Duration    `json:"window_ns" db:"window_size"` // 0: units at once
	Shape      limit.Shape      `json:"shape" db:"shape"`           // {}: a sliding window
	PerKey     bool             `json:"per_key" db:"per_key"`
	Overrides  map[string]int64 `json:"overrides" db:"overrides"` // keys that have other units
	CountCost  bool             `json:"count_cost" db:"count_cost"`
	Config     *string          `json:"config" db:"-"` // the configuration's rate, while an override is in force
	Queues     []string         `json:"queues" db:"queues"`
	PausedKeys int64            `json:"paused_keys" db:"paused_keys"` // that are paused alone
	ChangedAt  time.Time        `json:"changed_at" db:"applied_at"`
	ChangedBy  string           `json:"changed_by" db:"applied_by"`
	LimitUse
	LimitRemote
	limitFacts
}

// LimitUse is what a limit's units are doing.
type LimitUse struct {
	Occupied  int64      `json:"occupied" db:"-"` // approximate; of the key that uses most
	InDoubt   int64      `json:"in_doubt" db:"-"` // of Occupied, by requests without an answer whose hosts have answered no later one
	Room      int64      `json:"room" db:"-"`
	State     string     `json:"state" db:"state"`
	ShutUntil *time.Time `json:"shut_until" db:"shut_until"`

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
	Configured *limit.Rate `json:"-" db:"config"` // see Config
	now        time.Time
	key        string     // of a limit per key: that uses most, or was asked about
	next       *time.Time // when a unit comes free, whether there is room or not
	free       int64      // room, whether it is open or not
	occupied   []limit.Charge
}

// Idle says that no queue uses it.
func (l Limit) Idle() bool { return len(l.Queues) == 0 }

// StateText says whether it is open, until when not, and whether keys are paused.
func (l Limit) StateText() string {
	text := l.stateUntil(Short(l.State))
	if l.OpensAt != nil {
		text = "full, " + nextUnit(*l.OpensAt, l.now)
	} else if l.State == "open" && l.Room == 0 && !l.Idle() {
		text = "full"
	}
	switch {
	case l.State == "open" && l.Missing > 0:
		text += ", but for " + l.missingText() + l.vouchText()
	case l.State == shutMissing:
		text += l.vouchText()
	}
	if l.InDoubt > 0 {
		text += fmt.Sprintf(", %d in doubt", l.InDoubt)
	}
	return text + keysPaused(l.PausedKeys)
}

func (l Limit) stateUntil(state string) string {
	if l.ShutUntil == nil {
		return state
	}
	return state + " until " + Instant(l.ShutUntil)
}

func (l Limit) missingText() string {
	return fmt.Sprintf("%d units that may be missing and count as used until %s", l.Missing, Instant(l.MissingUntil))
}

func (l Limit) vouchText() string {
	return " (if you know what was sent: callq limits open " + l.Name + ")"
}

// rate is that of the key that uses most, or that was asked about.
func (l Limit) rate() limit.Rate {
	units := l.Units
	if own, has := l.Overrides[l.key]; has && l.PerKey {
		units = own
	}
	return limit.Rate{Units: units, Window: l.Window, Shape: l.Shape}
}

// nextUnit says when a unit comes free.
func nextUnit(at, now time.Time) string {
	text := "next unit in " + About(at.Sub(now))
	if at.Sub(now) > 2*time.Minute {
		text += ", at about " + Instant(&at)
	}
	return text
}

// InAll is how many units there are in all.
func (l Limit) InAll() int64 { return l.rate().Most() }

// LimitDetails is a limit with what became of it.
type LimitDetails struct {
	Limit
	History
}

// ReadLimit reads a limit by its name; nil: there is none.
func ReadLimit(ctx context.Context, pool Pool, name string) (*LimitDetails, error) {
	return snapshot(ctx, pool, func(r *reader) *LimitDetails {
		limits := r.limits([]string{name}, nil)
		if len(limits) == 0 {
			return nil
		}
		return &LimitDetails{limits[0], r.history("limit", name)}
	})
}

// ReadLimits reads all limits, and of those per key what the key uses that uses most.
func ReadLimits(ctx context.Context, pool Pool) ([]Limit, error) {
	return snapshot(ctx, pool, func(r *reader) []Limit { return r.limits(nil, nil) })
}

// limits reads the limits that are named (nil: all), and of those per key what this key uses; nil: that uses most. It counts
// as a claim does, but without locks.
func (r *reader) limits(names []string, key *string) []Limit {
	limits := list[Limit](r, "read limits", limitsSQL, names)
	since := make([]time.Time, len(limits))
	names = make([]string, len(limits))
	for i := range limits {
		l := &limits[i]
		l.now = r.now
		l.Rate = limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}.String()
		if l.PerKey {
			l.Rate += ", per key"
		}
		if n := len(l.Overrides); n > 0 {
			l.Rate += fmt.Sprintf(" (%d of their own)", n)
		}
		if l.CountCost {
			l.Rate += ", by cost"
		}
		if l.Configured != nil {
			l.Config = new(l.Configured.String())
		}
		names[i], since[i] = l.Name, l.rate().Since(l.now, 0)
	}
	used := map[string]usage{}
	for _, u := range list[usage](r, "count occupied units", usageSQL, names, since, key, r.quick, r.listed) {
		used[u.Name] = u
	}
	for i := range limits {
		l := &limits[i]
		u := used[l.Name]
		if l.key = u.Key; l.PerKey && key != nil {
			l.key = *key
		}
		l.reckon(u, r.missing(l))
	}
	r.remotes(limits)
	return limits
}

// A limit that left the configuration, or that no queue uses, is idle; its row stays for what was claimed under it.
const limitsSQL = `
SELECT l.name, l.rate, l.window_size, l.shape, l.per_key, l.overrides, l.count_cost, l.config, l.queues,
    l.applied_at, l.applied_by, l.missing_until, l.known_at, l.known_less,
    CASE
    WHEN cardinality(l.queues) = 0 THEN 'idle: no queue uses it'
    WHEN p.spell IS NULL AND p.name IS NOT NULL THEN 'paused: ' || p.reason
    WHEN p.until > clock_timestamp() THEN 'refused: ' || p.reason
    WHEN p.name IS NOT NULL THEN 'probed: one call goes before the others, for ' || p.reason
    WHEN l.epoch <> callq.epoch() THEN '` + shutFailover + `'
    WHEN l.complete_since IS NULL THEN '` + shutCounting + `'
    ELSE 'open' END AS state,
    CASE WHEN p.until < clock_timestamp() THEN clock_timestamp() + interval '2 s' WHEN p.until < 'infinity' THEN p.until END AS shut_until,
    (SELECT count(*) FROM callq.call_pauses k
     WHERE k.what = 'limit' AND k.name = l.name AND k.key <> '' AND k.until > clock_timestamp()) AS paused_keys
FROM callq.call_limits l
LEFT JOIN callq.call_pauses p ON p.what = 'limit' AND p.name = l.name AND p.key = '' AND (p.until > clock_timestamp() OR p.spell IS NOT NULL)
WHERE $1::text[] IS NULL OR l.name = ANY($1)
ORDER BY l.name`

// usage is what of a limit is occupied by the key that uses most, or that was asked about.
type usage struct {
	Name    string     `db:"name"`
	Key     string     `db:"key"`
	Units   int64      `db:"units"`
	Former  int64      `db:"former"`   // of those, open when units went missing
	InDoubt int64      `db:"in_doubt"` // of those, by requests that ended without an answer and may still arrive
	FreedAt *time.Time `db:"freed_at"` // the earliest until; nil: unknown
	// Of each charge of a token bucket, and of others if they are to be listed. Of what ends nobody knows when, a token bucket's is in
	// 100 years, and that of others by when it started, or now.
	Until []time.Time `db:"until"`
	Costs []int64     `db:"costs"` // likewise
}

// A charge counts from since (limit.Rate.Since) on. To add up what each of very many keys uses takes longer than all else, so
// that is done only to find the fullest.
const usageSQL = `
WITH asked AS (
    SELECT l.*, a.since, shape ->> 'algorithm' = 'token_bucket' AS by_charge
    FROM unnest($1::text[], $2::timestamptz[]) AS a (name, since) JOIN callq.call_limits l USING (name)
), open AS ( -- the units of open attempts
    SELECT u.name, u.key, u.cost, CASE WHEN o.epoch <> a.epoch THEN u.cost ELSE 0 END AS former,
        CASE WHEN until < 'infinity' THEN greatest(o.started_at, CASE a.proof WHEN 'later' THEN o.overtaken_at ELSE o.acked_at END)
            WHEN a.proof = 'later' AND o.started_at IS NOT NULL AND o.send_within IS NOT NULL THEN greatest(o.started_at, now() - interval '250 ms') END AS freed_at,
        CASE WHEN a.by_charge THEN least(until, now() + interval '100 years')
            WHEN $5 THEN least(until, coalesce(greatest(o.started_at, o.acked_at, o.overtaken_at), now())) END AS until, false AS in_doubt
    FROM callq.call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    JOIN asked a ON a.name = u.name
    CROSS JOIN LATERAL (
        SELECT callq.occupied_until(o.task, o.epoch, o.started_at, o.send_within, o.acked_at, o.overtaken_at, a.anchor, a.epoch, a.slack,
            a.proof) AS until
    ) x
    WHERE x.until > since AND ($3::text IS NULL OR u.key = CASE WHEN a.per_key THEN $3 ELSE '' END)
), keys AS ( -- whose usage is added up: each with an open attempt, and the fullest of all
    SELECT name, CASE WHEN per_key THEN $3 ELSE '' END AS key FROM asked WHERE NOT per_key OR $3 IS NOT NULL
    UNION
    SELECT name, key FROM open
    UNION
    SELECT a.name, fullest.key
    FROM asked a
    CROSS JOIN LATERAL (
        SELECT key FROM callq.call_usage WHERE limit_name = a.name AND bucket > a.since
        GROUP BY key ORDER BY sum(used) DESC LIMIT 1
    ) fullest
    WHERE a.per_key AND $3 IS NULL AND NOT $4
), units AS (
    SELECT * FROM open
    UNION ALL
    SELECT k.name, k.key, u.used, CASE WHEN u.shard < 0 THEN u.used ELSE 0 END,
        CASE WHEN u.bucket < ` + limit.UnknownSQL + ` THEN u.bucket END, CASE WHEN a.by_charge OR $5 THEN u.bucket END,
        u.bucket = ` + limit.UnknownSQL + `
    FROM keys k
    JOIN asked a ON a.name = k.name
    JOIN callq.call_usage u ON u.limit_name = k.name AND u.key = k.key AND u.bucket > a.since
)
SELECT DISTINCT ON (name) name, key, sum(cost)::bigint AS units, sum(former)::bigint AS former, coalesce(sum(cost) FILTER (WHERE in_doubt), 0)::bigint AS in_doubt,
    min(freed_at) AS freed_at, array_agg(until) FILTER (WHERE until IS NOT NULL) AS until, array_agg(cost) FILTER (WHERE until IS NOT NULL) AS costs
FROM units
GROUP BY name, key
ORDER BY name, units DESC`

// missing is what may have been given out of the limit that nobody knows of; nil: nothing that may still count.
func (r *reader) missing(l *Limit) *limit.Missing {
	m := limit.MissingAt(l.rate(), l.MayArrive, l.KnownAt, l.now, 0)
	if m == nil || l.KnownAt == nil || r.err != nil {
		return m
	}
	known, err := policy.Known(r.ctx, r.tx, []string{l.Name}, []string{l.key}, []time.Time{l.rate().KnownSince(*l.KnownAt)})
	if r.err = err; err == nil {
		m.Known = known[0] - l.KnownLess
	}
	return m
}

// reckon says what there is room for, and when there is more.
func (l *Limit) reckon(u usage, missing *limit.Missing) {
	use := limit.Use{Rate: l.rate(), Occupied: u.Units}
	if u.FreedAt != nil {
		use.Freed = *u.FreedAt
	}
	for i, until := range u.Until {
		l.occupied = append(l.occupied, limit.Charge{Until: until, Units: u.Costs[i]})
	}
	if l.Shape.Algorithm == limit.TokenBucket {
		use.Charges = l.occupied
	}
	known := use.Room(l.now, 0)
	room := known
	if missing != nil {
		missing.Former, use.Missing = u.Former, missing
		room = use.Room(l.now, 0)
		l.Missing, l.MissingUntil = known-room, new(l.rate().Passed(missing.Until, 0).UTC())
		if l.State == "open" && missing.Known <= 0 && l.Shape.Algorithm != limit.TokenBucket {
			l.State, l.ShutUntil = shutMissing, l.MissingUntil
		}
	}
	l.Occupied, l.InDoubt, l.free = u.Units, u.InDoubt, room
	if l.Shape.Algorithm == limit.TokenBucket {
		l.Occupied = l.Shape.Burst - room
	}
	if l.Window > 0 && (!use.Freed.IsZero() || len(use.Charges) > 0 || l.Shape.Algorithm == limit.FixedWindow) {
		l.next = new(use.NextLook(l.now, 0).UTC())
	}
	if l.State == "open" {
		if l.Room = room; room == 0 {
			l.OpensAt = l.next
		}
	}
}

// Why a limit may be shut.
const (
	shutFailover = "shut: Postgres failed over or was restored"
	shutCounting = "shut: counting its usage"
	shutMissing  = "shut: what it has used may be missing"
)

// History is what became of a limit or queue.
type History struct {
	Pauses  []Pause  `json:"pauses"`  // that have not ended
	Changes []Change `json:"changes"` // the last, newest first
}

// Pause is a pause of all calls or of a key.
type Pause struct {
	What    string     `json:"-" db:"what"` // limit or queue
	Name    string     `json:"-" db:"name"`
	Key     string     `json:"key" db:"key"` // empty: all
	Until   *time.Time `json:"until" db:"until"`
	Reason  string     `json:"reason" db:"reason"`
	At      time.Time  `json:"at" db:"at"`
	By      string     `json:"by" db:"by"`
	Refused bool       `json:"refused" db:"refused"` // the API closed it
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
SELECT what, name, key, nullif(until, 'infinity') AS until, reason, at, by, spell IS NOT NULL AS refused
FROM callq.call_pauses
WHERE until > clock_timestamp()`

const auditSQL = `SELECT at, by, change FROM callq.call_audit WHERE what = $1 AND name = $2 ORDER BY id DESC LIMIT 20`

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
