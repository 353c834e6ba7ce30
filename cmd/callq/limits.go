package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/cmd/callq/config"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

func (p *program) limitsCommand() *cobra.Command {
	return group("limits", "Show, set and pause limits",
		p.limitsListCommand(), p.limitsGetCommand(), p.limitsForecastCommand(), p.limitsSetCommand(), p.limitsResetCommand(),
		p.pauseCommand("limit"), p.resumeCommand("limit"))
}

func (p *program) limitsListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the limits in force, and what is used of them",
		Long: "List the limits in force, and what is used of them; where a limit is per key, of the key that uses\n" +
			"most. Occupied and room are read without the limits' locks: they are approximate, and nothing is\n" +
			"decided by them.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				limits, err := readLimits(ctx, pool)
				if err != nil {
					return err
				}
				if err := printRows(p, limits, limitColumns()...); err != nil || p.output != "table" {
					return err
				}
				p.printDifferences(limits, nil)
				return nil
			})
		},
	}
}

func (p *program) limitsGetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get LIMIT", Short: "Show one limit: what is used of it, its pauses, its last changes",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				return p.showLimit(ctx, pool, args[0])
			})
		},
	}
}

// limitDetails is a limit with what became of it.
type limitDetails struct {
	limitRow
	Pauses  []pauseRow `json:"pauses"`
	Changes []auditRow `json:"changes"` // newest first
}

func (p *program) showLimit(ctx context.Context, pool *pgxpool.Pool, name string) error {
	limits, err := readLimits(ctx, pool)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(limits, func(l limitRow) bool { return l.Name == name })
	if i < 0 {
		return unknownRule("limit", name)
	}
	d := limitDetails{limitRow: limits[i]}
	if d.Pauses, err = readPauses(ctx, pool, "limit", name); err != nil {
		return err
	}
	if d.Changes, err = readAudit(ctx, pool, "limit", name); err != nil {
		return err
	}
	if p.output != "table" {
		return p.printJSON(d)
	}
	if err := printTable(p.stdout, limits[i:i+1], limitColumns()...); err != nil {
		return err
	}
	p.printDifferences(limits[i:i+1], nil)
	return p.printPausesAndChanges(d.Pauses, d.Changes)
}

// limitRow is a limit in force.
type limitRow struct {
	Name       string           `json:"name" db:"name"`
	Rate       string           `json:"rate" db:"-"`
	Units      int64            `json:"units" db:"rate"`
	Window     time.Duration    `json:"window_ns" db:"window_size"` // 0: units at once
	Shape      limit.Shape      `json:"shape" db:"shape"`           // {}: a sliding window
	PerKey     bool             `json:"per_key" db:"per_key"`
	Overrides  map[string]int64 `json:"overrides" db:"overrides"` // keys that have other units
	CountCost  bool             `json:"count_cost" db:"count_cost"`
	Config     *string          `json:"config" db:"-"` // the config's rate, where an operator has set another
	Queues     []string         `json:"queues" db:"queues"`
	Occupied   int64            `json:"occupied" db:"occupied"` // approximate; of the key that uses most
	Room       int64            `json:"room" db:"-"`
	State      string           `json:"state" db:"state"`
	ShutUntil  *time.Time       `json:"shut_until" db:"shut_until"`
	PausedKeys int64            `json:"paused_keys" db:"paused_keys"` // that are paused alone
	ChangedAt  time.Time        `json:"changed_at" db:"published_at"`
	ChangedBy  string           `json:"changed_by" db:"published_by"`

	// OpensAt is about when the next unit comes free; nil: there is room, or nobody knows.
	OpensAt *time.Time `json:"opens_at" db:"-"`

	FreedAt      *time.Time     `json:"-" db:"freed_at"` // the earliest until of an occupied unit
	ConfigUnits  *int64         `json:"-" db:"config_rate"`
	ConfigWindow *time.Duration `json:"-" db:"config_window"`
	ConfigShape  *limit.Shape   `json:"-" db:"config_shape"`
	Key          *string        `json:"-" db:"key"` // that uses most, where the limit is per key
	Now          time.Time      `json:"-" db:"now"`
	next         *time.Time     // when a unit comes free, if there is room or not
	Anchor       string         `json:"anchor" db:"anchor"` // empty: start for the http task, finish for others
	Slack        time.Duration  `json:"slack_ns" db:"slack"`
	SendWithin   time.Duration  `json:"send_within_ns" db:"send_within"`
	// Wanted is what each live process publishes, where they differ: then the stricter holds.
	Wanted []dispatcher.Want `json:"wanted" db:"-"`
}

// holds is what is in force, in the words of what processes want.
func (l limitRow) holds() string {
	text := dispatcher.LimitRule{
		Rate: l.rate(), PerKey: l.PerKey, Overrides: l.Overrides, CountCost: l.CountCost,
		Anchor: limit.Anchor(l.Anchor), Slack: l.Slack, SendWithin: l.SendWithin,
	}.String()
	if l.Config != nil {
		text += " (set; config: " + *l.Config + ")"
	}
	return text
}

func (l limitRow) rate() limit.Rate {
	return limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}
}

func (l limitRow) stateUntil(state string) string {
	if l.ShutUntil == nil {
		return state
	}
	return state + " until " + instant(l.ShutUntil)
}

func limitColumns() []column[limitRow] {
	return []column[limitRow]{
		{"LIMIT", func(l limitRow) string { return l.Name }},
		{"RATE", func(l limitRow) string {
			if l.Config != nil {
				return l.Rate + " (set; config: " + *l.Config + ")"
			}
			return l.Rate
		}},
		{"QUEUES", func(l limitRow) string { return dash(strings.Join(l.Queues, ",")) }},
		{"OCCUPIED", func(l limitRow) string { return "~" + strconv.FormatInt(l.Occupied, 10) }},
		{"ROOM", func(l limitRow) string { return "~" + strconv.FormatInt(l.Room, 10) }},
		{"STATE", func(l limitRow) string {
			return l.stateUntil(short(l.State)) + keysPaused(l.PausedKeys)
		}},
		{"CHANGED AT", func(l limitRow) string { return instant(&l.ChangedAt) }},
		{"BY", func(l limitRow) string { return l.ChangedBy }},
	}
}

// readLimits reads all limits, and of those per key what the key uses that uses most.
func readLimits(ctx context.Context, db ledger.DB) ([]limitRow, error) {
	return readLimitsFor(ctx, db, nil, nil)
}

// readLimitsFor reads the limits that are named (nil: all), and of those per key what this key uses.
func readLimitsFor(ctx context.Context, db ledger.DB, names []string, key *string) ([]limitRow, error) {
	since, err := calendarSince(ctx, db)
	if err != nil {
		return nil, err
	}
	limits, err := collect[limitRow](ctx, db, "read limits", limitsSQL, names, key, since.names, since.at)
	if err != nil {
		return nil, err
	}
	live, err := dispatcher.Live(ctx, db)
	if err != nil {
		return nil, err
	}
	wanted, _ := dispatcher.Differences(live)
	charges, err := readCharges(ctx, db, limits, key)
	if err != nil {
		return nil, err
	}
	for i := range limits {
		l := &limits[i]
		if key != nil && l.PerKey {
			l.Key = key
		}
		l.Wanted = wanted[l.Name]
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
		l.reckon(charges[l.Name])
		inUTC(&l.ChangedAt, l.ShutUntil, l.OpensAt)
	}
	return limits, nil
}

// own are the units of the key that uses most, or that was asked about.
func (l *limitRow) own() int64 {
	if l.PerKey && l.Key != nil {
		if units, own := l.Overrides[*l.Key]; own {
			return units
		}
	}
	return l.Units
}

// inAll is how many units there are in all.
func (l *limitRow) inAll() int64 {
	if l.Shape.Algorithm == limit.TokenBucket {
		return l.Shape.Burst
	}
	return l.own()
}

// reckon says what there is room for, and when there is more.
func (l *limitRow) reckon(charges map[string][]limit.Charge) {
	use := limit.Use{Rate: l.rate(), Occupied: l.Occupied}
	use.Rate.Units = l.own()
	if l.FreedAt != nil {
		use.Freed = *l.FreedAt
	}
	room := use.Room(l.Now, 0)
	for _, of := range charges { // of a token bucket, that of the key which has least
		if one := (limit.Use{Rate: use.Rate, Charges: of}); one.Room(l.Now, 0) <= room {
			use, room = one, one.Room(l.Now, 0)
		}
	}
	if l.Shape.Algorithm == limit.TokenBucket {
		l.Occupied = l.Shape.Burst - room
	}
	if l.Window > 0 && (l.FreedAt != nil || len(charges) > 0) {
		l.next = new(use.NextLook(l.Now, 0))
	}
	if l.State == "open" {
		if l.Room = room; room == 0 {
			l.OpensAt = l.next
		}
	}
}

// As the claim counts what is occupied, but without locks. A limit that left the configuration, or
// that no queue uses, is idle; its row stays for what was claimed under it.
const limitsSQL = `
WITH marks AS (
    SELECT l.name, l.per_key, l.slack, l.anchor, coalesce(c.since, clock_timestamp() - l.window_size * 1.001) AS since
    FROM call_limits l
    LEFT JOIN unnest($3::text[], $4::timestamptz[]) AS c (name, since) ON c.name = l.name
    WHERE $1::text[] IS NULL OR l.name = ANY($1)
), open AS (
    SELECT u.name, u.key, sum(u.cost) AS cost,
        min(CASE m.starts WHEN 'start' THEN o.started_at WHEN 'dispatch' THEN o.claimed_at END) AS freed_at
    FROM call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    CROSS JOIN LATERAL (
        SELECT *, coalesce(anchor, CASE o.task WHEN 'http' THEN 'start' ELSE 'finish' END) AS starts
        FROM marks WHERE name = u.name
    ) m
    WHERE CASE m.starts WHEN 'start' THEN coalesce(o.started_at + o.send_within + m.slack, 'infinity')
               WHEN 'dispatch' THEN o.claimed_at
               ELSE 'infinity' END > m.since
      AND ($2::text IS NULL OR u.key = CASE WHEN m.per_key THEN $2 ELSE '' END)
    GROUP BY u.name, u.key
), used AS (
    SELECT u.limit_name AS name, u.key, sum(u.used) AS cost, min(u.bucket) AS freed_at
    FROM call_usage u JOIN marks m ON m.name = u.limit_name AND u.bucket > m.since
    WHERE $2::text IS NULL OR u.key = CASE WHEN m.per_key THEN $2 ELSE '' END
    GROUP BY u.limit_name, u.key
), occupied AS (
    SELECT DISTINCT ON (name) name, key, coalesce(o.cost, 0) + coalesce(u.cost, 0) AS cost, least(o.freed_at, u.freed_at) AS freed_at
    FROM open o FULL JOIN used u USING (name, key)
    ORDER BY name, cost DESC
)
SELECT l.name, l.rate, l.window_size, l.shape, l.per_key, l.overrides, l.count_cost,
    l.config_rate, l.config_window, l.config_shape, coalesce(l.anchor, '') AS anchor,
    l.slack, l.send_within, l.queues, l.published_at, l.published_by,
    coalesce(o.cost, 0)::bigint AS occupied, o.freed_at, CASE WHEN l.per_key THEN o.key END AS key, clock_timestamp() AS now,
    CASE
    WHEN cardinality(l.queues) = 0 THEN 'idle: no queue uses it'
    WHEN p.name IS NOT NULL THEN 'paused: ' || p.reason
    WHEN l.epoch <> callq_epoch() THEN 'shut: Postgres failed over or was restored'
    WHEN l.shut_until > clock_timestamp() THEN 'shut after a failover'
    WHEN l.complete_since IS NULL THEN 'shut: counting its usage'
    ELSE 'open' END AS state,
    CASE WHEN p.until < 'infinity' THEN p.until WHEN p.name IS NULL AND l.shut_until > clock_timestamp() THEN l.shut_until END AS shut_until,
    (SELECT count(*) FROM call_pauses k
     WHERE k.what = 'limit' AND k.name = l.name AND k.key <> '' AND k.until > clock_timestamp()) AS paused_keys
FROM call_limits l
JOIN marks m ON m.name = l.name
LEFT JOIN occupied o ON o.name = l.name
LEFT JOIN call_pauses p ON p.what = 'limit' AND p.name = l.name AND p.key = '' AND p.until > clock_timestamp()
ORDER BY l.name`
