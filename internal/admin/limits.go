package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/usage"
	"github.com/callq/callq/internal/words"
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
	Shares     limit.Shares     `json:"-" db:"shares"` // nil: it has none
	Parts      []Share          `json:"shares" db:"-"` // likewise
	Config     *string          `json:"config" db:"-"` // the configuration's rate, while an override is in force
	Queues     []string         `json:"queues" db:"queues"`
	PausedKeys int64            `json:"paused_keys" db:"paused_keys"` // that are paused alone
	ChangedAt  time.Time        `json:"changed_at" db:"applied_at"`
	ChangedBy  string           `json:"changed_by" db:"applied_by"`
	LimitState
	LimitRemote
	limitFacts
}

// LimitState is what a limit's units are doing.
type LimitState struct {
	Occupied  int64      `json:"occupied" db:"-"` // approximate; of the key that uses most
	InDoubt   int64      `json:"in_doubt" db:"-"` // of Occupied, by requests without an answer whose hosts have answered no later one
	Room      int64      `json:"room" db:"-"`
	State     string     `json:"state" db:"state"`
	ShutUntil *time.Time `json:"shut_until" db:"shut_until"`

	// Missing units count as used until MissingUntil: after a failover they may have been given out. If they are all that the
	// limit has, it is closed.
	Missing      int64      `json:"missing" db:"-"`
	MissingUntil *time.Time `json:"missing_until" db:"-"`

	// Until EvenUntil calls go one by one, a gap apart: the API refused some that came together. nil: they do not.
	EvenUntil *time.Time `json:"even_until" db:"even_until"`

	// OpensAt is about when the next unit comes free; nil: there is room, or that is not known.
	OpensAt *time.Time `json:"opens_at" db:"-"`
}

// limitFacts is what the rest is computed from.
type limitFacts struct {
	MayArrive  *time.Time    `json:"-" db:"missing_until"` // until when missing units may arrive
	KnownAt    *time.Time    `json:"-" db:"known_at"`
	KnownLess  int64         `json:"-" db:"known_less"`
	Configured *limit.Rate   `json:"-" db:"config"` // see Config
	UnderWay   time.Duration `json:"-" db:"under_way"`
	now        time.Time
	key        string       // of a limit per key: that uses most, or was asked about
	used       *usage.Count // by that key
	nextIfOpen *time.Time   // when a unit comes free, whether there is room or not
	roomIfOpen int64        // room, whether it is open or not
}

// Idle reports that no queue uses it.
func (l Limit) Idle() bool { return len(l.Queues) == 0 }

// StateText reports whether it is open, until when not, and whether keys are paused.
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
	if l.EvenUntil != nil {
		text += ", evenly until " + Instant(l.EvenUntil)
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
	return fmt.Sprintf("%s that may be missing and count as used until %s", words.Count(l.Missing, "unit"), Instant(l.MissingUntil))
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

// nextUnit returns when a unit comes free.
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

// ReadLimits reads all limits. For those per key, the figures are those of the fullest key.
func ReadLimits(ctx context.Context, pool Pool) ([]Limit, error) {
	return snapshot(ctx, pool, func(r *reader) []Limit { return r.limits(nil, nil) })
}

// limits reads the limits that are named; nil: all. For a limit per key, the figures are those of one key: key, or if nil the
// fullest. It counts as a claim does, but without locks.
func (r *reader) limits(names []string, key *string) []Limit {
	limits := list[Limit](r, "read limits", limitsSQL, names)
	gains := list[limit.Gain](r, "read what the clock gained", gainsSQL)
	keys := r.keysOf(limits, key)
	var counts []*usage.Count
	for i := range limits {
		l := &limits[i]
		l.now = r.now
		l.describe()
		for _, key := range keys[l.Name] {
			c := usage.New(l.row(), key, r.now, gains)
			if r.listed {
				c.ListAll(r.now)
			}
			counts = append(counts, c)
		}
	}
	used := r.fullest(counts)
	for i := range limits {
		if l := &limits[i]; used[l.Name] != nil {
			l.key, l.used = used[l.Name].Key, used[l.Name]
		}
	}
	r.addParts(limits)
	r.addRemotes(limits) // before reckon, which goes by them
	for i := range limits {
		limits[i].reckon()
	}
	return limits
}

const gainsSQL = `SELECT at, by FROM callq.call_clock_gains WHERE by > '0' ORDER BY id`

// describe writes the rate for people.
func (l *Limit) describe() {
	l.Rate = limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}.String()
	if l.PerKey {
		l.Rate += ", per key"
	}
	if n := len(l.Overrides); n > 0 {
		l.Rate += fmt.Sprintf(" (%d of %s own)", n, words.Verb(int64(n), "its", "their"))
	}
	if l.CountCost {
		l.Rate += ", by cost"
	}
	if len(l.Shares) > 0 {
		l.Rate += ", shares " + l.Shares.String()
	}
	if l.Configured != nil {
		l.Config = new(l.Configured.String())
	}
}

// row is the limit as claims read it.
func (l *Limit) row() policy.LockedLimit {
	return policy.LockedLimit{
		Name: l.Name, Units: l.Units, Window: l.Window, Shape: l.Shape, PerKey: l.PerKey, CountCost: l.CountCost, Overrides: l.Overrides,
		UnderWay: l.UnderWay, LimitUsage: policy.LimitUsage{MissingUntil: l.MayArrive, KnownAt: l.KnownAt, KnownLess: l.KnownLess},
	}
}

// keysOf returns the keys of each limit whose use is counted: the one that is asked about, or those that may use most.
func (r *reader) keysOf(limits []Limit, key *string) map[string][]string {
	keys, perKey, since := map[string][]string{}, []string{}, []time.Time{}
	for _, l := range limits {
		switch {
		case !l.PerKey:
			keys[l.Name] = []string{""}
		case key != nil:
			keys[l.Name] = []string{*key}
		default:
			perKey, since = append(perKey, l.Name), append(since, l.rate().Since(r.now, 0))
		}
	}
	if len(perKey) > 0 {
		for _, of := range list[usage.Of](r, "find the keys that use most", fullKeysSQL, perKey, since, r.quick) {
			keys[of.Limit] = append(keys[of.Limit], of.Key)
		}
	}
	return keys
}

// Each key with an open attempt may be the fullest, and so may the one with most usage. To add up what each of very many keys uses
// takes longer than all else; $3 leaves that out.
const fullKeysSQL = `
SELECT u.name AS limit, u.key
FROM callq.call_open o CROSS JOIN LATERAL unnest(o.limits, o.keys) AS u (name, key)
WHERE u.name = ANY($1)
UNION
SELECT a.name, fullest.key
FROM unnest($1::text[], $2::timestamptz[]) AS a (name, since)
CROSS JOIN LATERAL (
    SELECT key FROM callq.call_usage WHERE limit_name = a.name AND bucket > a.since
    GROUP BY key ORDER BY sum(used) DESC LIMIT 1
) fullest
WHERE NOT $3`

// fullest reads the counts, and returns by limit the one of the key that uses most.
func (r *reader) fullest(counts []*usage.Count) map[string]*usage.Count {
	full := map[string]*usage.Count{}
	var b pgx.Batch
	usage.Read(&b, counts, 0)
	if r.err == nil {
		r.err = ledger.Wrap("count occupied units", r.tx.SendBatch(r.ctx, &b).Close())
	}
	for _, c := range counts {
		if most := full[c.Limit]; most == nil || c.Use.Occupied > most.Use.Occupied {
			full[c.Limit] = c
		}
	}
	if r.err == nil {
		r.err = usage.AddKnown(r.ctx, r.tx, slices.Collect(maps.Values(full)))
	}
	return full
}

// A limit that left the configuration, or that no queue uses, is idle; its row stays for what was claimed under it.
const limitsSQL = `
SELECT l.name, l.rate, l.window_size, l.shape, l.per_key, l.overrides, l.count_cost, nullif(l.shares, '{}') AS shares, l.config, l.queues,
    l.applied_at, l.applied_by, l.missing_until, l.known_at, l.known_less,
    CASE WHEN l.even_until > clock_timestamp() THEN l.even_until END AS even_until, ` + policy.UnderWaySQL + ` AS under_way,
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

// reckon works out what there is room for, and when there is more.
func (l *Limit) reckon() {
	if l.used == nil { // of no key anything is used
		l.used = usage.New(l.row(), l.key, l.now, nil)
	}
	use, gained := l.used.Use, l.used.Gained
	if l.Lowered != nil {
		l.used.Lower(*l.Lowered)
		use.Rate = l.used.Use.Rate
	}
	bucket := use.Rate.Returns() == limit.Evenly
	l.roomIfOpen = use.Room(l.now, gained)
	if m := use.Missing; m != nil {
		whole := use
		whole.Missing = nil
		l.Missing, l.MissingUntil = whole.Room(l.now, gained)-l.roomIfOpen, new(use.Rate.Passed(m.Until, gained).UTC())
		if l.State == "open" && m.Known <= 0 && !bucket {
			l.State, l.ShutUntil = shutMissing, l.MissingUntil
		}
	}
	// A run uses no more at once than the limit has, and what was claimed ahead starts once units are free.
	l.Occupied, l.InDoubt = min(use.Occupied, max(use.Occupied-use.InRuns-use.Unsent, use.Rate.Units)), l.used.InDoubt
	if bucket {
		l.Occupied = l.Shape.Burst - l.roomIfOpen
	}
	if l.Window > 0 && (!use.FirstUntil.IsZero() || len(use.Charges) > 0 || use.Rate.Returns() == limit.Together) {
		l.nextIfOpen = new(use.NextLook(l.now, gained).UTC())
	}
	if l.State == "open" {
		if l.Room = l.roomIfOpen; l.roomIfOpen == 0 {
			l.OpensAt = l.nextIfOpen
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

// ReadChanges reads the last changes of what has this name: what is queue, limit, budget or calls.
func ReadChanges(ctx context.Context, db ledger.DB, what, name string) ([]Change, error) {
	return Collect[Change](ctx, db, "read the audit", auditSQL, what, name)
}

const pausesSQL = `
SELECT what, name, key, nullif(until, 'infinity') AS until, reason, at, by, spell IS NOT NULL AS refused
FROM callq.call_pauses
WHERE until > clock_timestamp()`

const auditSQL = `SELECT at, by, change || coalesce(': ' || nullif(reason, ''), '') AS change FROM callq.call_audit WHERE what = $1 AND name = $2 ORDER BY id DESC LIMIT 20`

// keysPaused is what a state adds where keys are paused alone.
func keysPaused(n int64) string {
	if n == 0 {
		return ""
	}
	return ", " + words.Count(n, "key") + " paused"
}
