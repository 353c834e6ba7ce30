package policy

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// limitRow is a limit's row as it is, or is to be.
type limitRow struct {
	Name       string           `db:"name"`
	Units      int64            `db:"rate"`
	Window     time.Duration    `db:"window_size"`
	Shape      limit.Shape      `db:"shape"`
	PerKey     bool             `db:"per_key"`
	Overrides  map[string]int64 `db:"overrides"`
	CountCost  bool             `db:"count_cost"`
	Anchor     string           `db:"anchor"`
	Slack      time.Duration    `db:"slack"`
	SendWithin time.Duration    `db:"send_within"`
	Hosts      []string         `db:"hosts"`
	RetryAfter time.Duration    `db:"retry_after"`
	Queues     []string         `db:"queues"`
	configured
}

// configured is the configuration's rate while an override is in force; else its fields are nil.
type configured struct {
	ConfigRate   *int64         `db:"config_rate"`
	ConfigWindow *time.Duration `db:"config_window"`
	ConfigShape  *limit.Shape   `db:"config_shape"`
}

func (row limitRow) rate() limit.Rate {
	return limit.Rate{Units: row.Units, Window: row.Window, Shape: row.Shape}
}

func (row *limitRow) setRate(r limit.Rate) {
	row.Units, row.Window, row.Shape = r.Units, r.Window, r.Shape
}

// config is the configuration's rate while an override is in force; else nil.
func (c configured) config() *limit.Rate {
	if c.ConfigRate == nil || c.ConfigWindow == nil || c.ConfigShape == nil {
		return nil
	}
	return &limit.Rate{Units: *c.ConfigRate, Window: *c.ConfigWindow, Shape: *c.ConfigShape}
}

func (c *configured) setConfig(r *limit.Rate) {
	*c = configured{}
	if r != nil {
		c.ConfigRate, c.ConfigWindow, c.ConfigShape = &r.Units, &r.Window, &r.Shape
	}
}

func (row limitRow) String() string {
	text := Limit{
		Rate: row.rate(), PerKey: row.PerKey, Overrides: row.Overrides, CountCost: row.CountCost,
		Anchor: limit.Anchor(row.Anchor), Slack: row.Slack, SendWithin: row.SendWithin,
		Hosts: row.Hosts, RetryAfter: &row.RetryAfter,
	}.String()
	if config := row.config(); config != nil {
		text += fmt.Sprintf(" (set; config: %s)", config)
	}
	return text
}

func (row limitRow) equal(other limitRow) bool {
	return row.rate() == other.rate() && maps.Equal(row.Overrides, other.Overrides) && row.onlyRaised(other) &&
		same(row.config(), other.config())
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// onlyRaised reports whether now differs from row only in a rate that is not lower.
func (row limitRow) onlyRaised(now limitRow) bool {
	for _, key := range slices.Concat(slices.Collect(maps.Keys(row.Overrides)), slices.Collect(maps.Keys(now.Overrides))) {
		if now.unitsOf(key) < row.unitsOf(key) {
			return false
		}
	}
	return now.rate().AtLeast(row.rate()) && now.PerKey == row.PerKey && now.CountCost == row.CountCost &&
		now.Anchor == row.Anchor && now.Slack == row.Slack && now.SendWithin == row.SendWithin && slices.Equal(now.Queues, row.Queues)
}

// unitsOf is how many units a key has in a window.
func (row limitRow) unitsOf(key string) int64 {
	if units, own := row.Overrides[key]; own {
		return units
	}
	return row.Units
}

// overridesFit reports whether the overrides, which are of the row's window, fit the window of r.
func (row limitRow) overridesFit(r limit.Rate) bool {
	return len(row.Overrides) == 0 || row.rate().Span() == r.Span()
}

// reachesShort reports whether the usage kept for row may lack what now must count: now has a longer window or another queue, or
// counts units in another way.
func (row limitRow) reachesShort(now limitRow) bool {
	return now.Window > row.Window || now.PerKey != row.PerKey || now.CountCost != row.CountCost ||
		slices.ContainsFunc(now.Queues, func(q string) bool { return !slices.Contains(row.Queues, q) })
}

// bounded reports whether now also bounds what kept to row and may be missing, except for what row allowed more (less).
func (row limitRow) bounded(now limitRow) bool {
	return !row.reachesShort(now) && now.rate().Comparable(row.rate()) &&
		(now.Shape.Algorithm != limit.TokenBucket || now.rate().AtLeast(row.rate()))
}

// less is by how much now allows less than row, for the key that loses most.
func (row limitRow) less(now limitRow) int64 {
	least := min(0, now.Units-row.Units)
	for _, key := range slices.Concat(slices.Collect(maps.Keys(row.Overrides)), slices.Collect(maps.Keys(now.Overrides))) {
		least = min(least, now.unitsOf(key)-row.unitsOf(key))
	}
	return -least
}
