package policy

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// limitRow is a limit's row as it is, or is to be.
type limitRow struct {
	Limit
	Config *limit.Rate `db:"config"` // the configuration's rate while an override is in force; else nil
	Queues []string    `db:"queues"`
}

const limitsSQL = `
SELECT name, jsonb_build_object('units', rate, 'window', (extract(epoch FROM window_size) * 1e9)::bigint) || shape AS rate, config,
    per_key, nullif(overrides, '{}') AS overrides, count_cost, coalesce(anchor, '') AS anchor, slack, send_within,
    nullif(hosts, '{}') AS hosts, retry_after, queues
FROM call_limits`

func (row limitRow) String() string {
	if row.Config == nil {
		return row.Limit.String()
	}
	return fmt.Sprintf("%s (set; config: %s)", row.Limit, row.Config)
}

// onlyRaised reports whether now counts the same calls as row, in the same way, and allows no less.
func (row limitRow) onlyRaised(now limitRow) bool {
	return row.less(now) == 0 && now.Rate.AtLeast(row.Rate) && now.PerKey == row.PerKey && now.CountCost == row.CountCost &&
		now.Anchor == row.Anchor && now.Slack == row.Slack && now.SendWithin == row.SendWithin && slices.Equal(now.Queues, row.Queues)
}

// less is by how much now allows less than row, for the key that loses most.
func (row limitRow) less(now limitRow) int64 {
	most := max(0, row.Rate.Units-now.Rate.Units)
	for _, overrides := range []map[string]int64{row.Overrides, now.Overrides} {
		for key := range overrides {
			most = max(most, row.unitsOf(key)-now.unitsOf(key))
		}
	}
	return most
}

// unitsOf is how many units a key has in a window.
func (row limitRow) unitsOf(key string) int64 {
	if units, own := row.Overrides[key]; own {
		return units
	}
	return row.Rate.Units
}

// overridesFit reports whether the overrides, which are of the row's window, fit the window of r.
func (row limitRow) overridesFit(r limit.Rate) bool {
	return len(row.Overrides) == 0 || row.Rate.Span() == r.Span()
}

// reachesShort reports whether the usage kept for row may lack what now must count: now has a longer window or another
// queue, or counts units in another way.
func (row limitRow) reachesShort(now limitRow) bool {
	return now.Rate.Window > row.Rate.Window || now.PerKey != row.PerKey || now.CountCost != row.CountCost ||
		slices.ContainsFunc(now.Queues, func(q string) bool { return !slices.Contains(row.Queues, q) })
}

// bounded reports whether now also bounds what kept to row and may be missing, except for what row allowed more (less).
func (row limitRow) bounded(now limitRow) bool {
	return !row.reachesShort(now) && now.Rate.Comparable(row.Rate) &&
		(now.Rate.Algorithm != limit.TokenBucket || now.Rate.AtLeast(row.Rate))
}

// applyLimits writes the limits. One that left the configuration keeps its row: attempts that were claimed under it are
// still charged to it.
func (a *application) applyLimits(ctx context.Context, p Policy) error {
	rows, err := collect(ctx, a.tx, pgx.RowToStructByName[limitRow], limitsSQL)
	if err != nil {
		return fmt.Errorf("read limits: %w", err)
	}
	old := map[string]limitRow{}
	for _, row := range rows {
		old[row.Name] = row
	}
	for _, l := range p.Limits {
		was, known := old[l.Name]
		delete(old, l.Name)
		now := limitRow{Limit: l, Queues: p.queuesOf(l.Name)}
		if was.Config != nil && was.Config.Comparable(l.Rate) && now.overridesFit(was.Rate) { // an override stays
			now.Config = &l.Rate
			now.Rate = was.Rate
		}
		if !known {
			err = a.putLimit(ctx, now, true, false, 0)
		} else {
			err = a.changeLimit(ctx, was, now)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if len(old[name].Queues) == 0 {
			continue
		}
		if _, err := a.tx.Exec(ctx, dropLimitSQL, name, a.by); err != nil {
			return fmt.Errorf("remove limit %q: %w", name, err)
		}
		a.dropped = append(a.dropped, name)
		a.changed("limit", name, "removed")
	}
	return nil
}

const dropLimitSQL = `
UPDATE call_limits
SET version = version + 1, queues = '{}', applied_at = clock_timestamp(), applied_by = $2
WHERE name = $1`

// changeLimit writes a limit that is no longer as it was.
func (a *application) changeLimit(ctx context.Context, was, now limitRow) error {
	if reflect.DeepEqual(was, now) {
		return nil
	}
	if !was.onlyRaised(now) {
		a.recall = append(a.recall, was.Queues...)
	}
	return a.putLimit(ctx, now, was.reachesShort(now), was.bounded(now), was.less(now))
}

// putLimit writes a limit. It closes it with shut. What may be missing stays known if the limit is bounded, except for less.
func (a *application) putLimit(ctx context.Context, l limitRow, shut, bounded bool, less int64) error {
	_, err := a.tx.Exec(ctx, putLimitSQL, pgx.StrictNamedArgs{
		"name": l.Name, "rate": l.Rate.Units, "window": l.Rate.Window, "shape": l.Rate.Shape, "bucket_width": l.Rate.Bucket(),
		"per_key": l.PerKey, "overrides": l.Overrides, "count_cost": l.CountCost, "anchor": l.Anchor, "slack": l.Slack,
		"send_within": l.SendWithin, "hosts": l.Hosts, "retry_after": l.RetryAfter, "queues": l.Queues,
		"config": l.Config, "by": a.by, "shut": shut, "bounded": bounded, "less": less,
	})
	if err != nil {
		return fmt.Errorf("write limit %q: %w", l.Name, err)
	}
	a.put = append(a.put, l.Name)
	a.wake = append(a.wake, l.Queues...)
	a.changed("limit", l.Name, l.String())
	return nil
}

// applied_at is read once the row is locked: claims under the former version came before it.
const putLimitSQL = `
INSERT INTO call_limits AS l (name, version, rate, window_size, shape, bucket_width, per_key, overrides, count_cost, anchor,
    slack, send_within, hosts, retry_after, queues, config,
    applied_at, applied_by, complete_since, epoch)
SELECT @name, coalesce(max(c.version), 0) + 1, @rate, @window::interval, @shape::jsonb, @bucket_width::interval,
    @per_key::boolean, coalesce(nullif(@overrides::jsonb, 'null'), '{}'), @count_cost::boolean, nullif(@anchor, ''),
    @slack::interval, @send_within::interval, coalesce(@hosts::text[], '{}'), @retry_after::interval, @queues::text[],
    nullif(@config::jsonb, 'null'), clock_timestamp(), @by, NULL, callq_epoch()
FROM call_limit_versions c WHERE c.limit_name = @name
ON CONFLICT (name) DO UPDATE
SET version = excluded.version, rate = excluded.rate, window_size = excluded.window_size, shape = excluded.shape,
    bucket_width = excluded.bucket_width, per_key = excluded.per_key, overrides = excluded.overrides,
    count_cost = excluded.count_cost, anchor = excluded.anchor, slack = excluded.slack, send_within = excluded.send_within,
    hosts = excluded.hosts, retry_after = excluded.retry_after, queues = excluded.queues, config = excluded.config,
    applied_at = clock_timestamp(), applied_by = excluded.applied_by,
    complete_since = CASE WHEN @shut THEN NULL ELSE l.complete_since END,
    known_at = CASE WHEN @bounded THEN l.known_at END, known_less = l.known_less + @less::bigint`
