package policy

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// applyLimits writes the limits in name order. A limit that left the configuration keeps its row: attempts
// that were claimed under it are still charged to it.
func (a *application) applyLimits(ctx context.Context, p Policy, rows []limitRow) error {
	old := map[string]limitRow{}
	for _, row := range rows {
		old[row.Name] = row
	}
	for _, l := range p.Limits {
		was, known := old[l.Name]
		delete(old, l.Name)
		now := limitRow{
			Name: l.Name, PerKey: l.PerKey, Overrides: l.Overrides, CountCost: l.CountCost,
			Anchor: string(l.Anchor), Slack: l.Slack, SendWithin: l.SendWithin, Hosts: append([]string{}, l.Hosts...),
			RetryAfter: l.retryAfter(), Queues: p.queuesOf(l.Name),
		}
		now.setRate(l.Rate)
		if !known {
			if err := a.change(ctx, nil, now); err != nil {
				return err
			}
			continue
		}
		if was.config() != nil && was.config().Comparable(l.Rate) && now.overridesFit(was.rate()) { // an override stays
			now.setConfig(&l.Rate)
			now.setRate(was.rate())
		}
		if err := a.change(ctx, &was, now); err != nil {
			return err
		}
	}
	for _, row := range rows {
		if _, gone := old[row.Name]; !gone || len(row.Queues) == 0 {
			continue
		}
		if _, err := a.tx.Exec(ctx, dropLimitSQL, row.Name, a.by); err != nil {
			return fmt.Errorf("remove limit %q: %w", row.Name, err)
		}
		a.dropped = append(a.dropped, row.Name)
		a.changed("limit", row.Name, "removed")
	}
	return nil
}

// change writes a limit that is new or no longer as it was.
func (a *application) change(ctx context.Context, was *limitRow, now limitRow) error {
	if was != nil && was.equal(now) {
		return a.noteUnversioned(ctx, *was, now)
	}
	if err := a.putLimit(ctx, was, now); err != nil {
		return err
	}
	a.put = append(a.put, now.Name)
	a.wake = append(a.wake, now.Queues...)
	a.changed("limit", now.Name, now.String())
	if was != nil && !was.onlyRaised(now) {
		a.recall = append(a.recall, was.Queues...)
	}
	return nil
}

// noteUnversioned writes whose Retry-After closes the limit if nothing else changed. That makes no new version, and
// recalls nothing.
func (a *application) noteUnversioned(ctx context.Context, was, now limitRow) error {
	if slices.Equal(was.Hosts, now.Hosts) && was.RetryAfter == now.RetryAfter {
		return nil
	}
	if _, err := a.tx.Exec(ctx, unversionedSQL, now.Name, now.Hosts, now.RetryAfter); err != nil {
		return fmt.Errorf("write limit %q: %w", now.Name, err)
	}
	a.changed("limit", now.Name, now.String())
	return nil
}

const unversionedSQL = `UPDATE call_limits SET hosts = $2, retry_after = $3 WHERE name = $1`

// given is m for a jsonb column: {} if it is nil.
func given(m map[string]int64) map[string]int64 {
	if m == nil {
		return map[string]int64{}
	}
	return m
}

// putLimit writes limit l, which was as was says, or did not exist.
func (a *application) putLimit(ctx context.Context, was *limitRow, l limitRow) error {
	shut, bounded, less := true, false, int64(0)
	if was != nil {
		shut, bounded, less = was.reachesShort(l), was.bounded(l), was.less(l)
	}
	_, err := a.tx.Exec(ctx, putLimitSQL, pgx.StrictNamedArgs{
		"name": l.Name, "rate": l.Units, "window": l.Window, "shape": l.Shape, "bucket_width": l.rate().Bucket(),
		"per_key": l.PerKey, "overrides": given(l.Overrides), "count_cost": l.CountCost,
		"anchor": l.Anchor, "slack": l.Slack, "send_within": l.SendWithin, "hosts": l.Hosts, "retry_after": l.RetryAfter, "queues": l.Queues,
		"config_rate": l.ConfigRate, "config_window": l.ConfigWindow, "config_shape": l.ConfigShape,
		"by": a.by, "shut": shut, "bounded": bounded, "less": less,
	})
	if err != nil {
		return fmt.Errorf("write limit %q: %w", l.Name, err)
	}
	return nil
}

// applied_at is read once the row is locked: claims under the former version came before it.
const putLimitSQL = `
INSERT INTO call_limits AS l (name, version, rate, window_size, shape, bucket_width, per_key, overrides, count_cost, anchor,
    slack, send_within, hosts, retry_after, queues, config_rate, config_window, config_shape,
    applied_at, applied_by, complete_since, epoch)
SELECT @name, coalesce(max(c.version), 0) + 1, @rate, @window::interval, @shape::jsonb, @bucket_width::interval,
    @per_key::boolean, @overrides::jsonb, @count_cost::boolean, nullif(@anchor, ''),
    @slack::interval, @send_within::interval, @hosts::text[], @retry_after::interval, @queues::text[], @config_rate::bigint, @config_window::interval, @config_shape::jsonb,
    clock_timestamp(), @by, NULL, callq_epoch()
FROM call_limit_versions c WHERE c.limit_name = @name
ON CONFLICT (name) DO UPDATE
SET version = excluded.version, rate = excluded.rate, window_size = excluded.window_size, shape = excluded.shape,
    bucket_width = excluded.bucket_width, per_key = excluded.per_key, overrides = excluded.overrides, count_cost = excluded.count_cost,
    config_rate = excluded.config_rate, config_window = excluded.config_window, config_shape = excluded.config_shape,
    anchor = excluded.anchor, slack = excluded.slack, send_within = excluded.send_within, hosts = excluded.hosts, retry_after = excluded.retry_after, queues = excluded.queues,
    applied_at = clock_timestamp(), applied_by = excluded.applied_by,
    complete_since = CASE WHEN @shut THEN NULL ELSE l.complete_since END,
    known_at = CASE WHEN @bounded THEN l.known_at END, known_less = l.known_less + @less::bigint`

const dropLimitSQL = `
UPDATE call_limits
SET version = version + 1, queues = '{}', applied_at = clock_timestamp(), applied_by = $2
WHERE name = $1`

const limitRowsSQL = `
SELECT name, rate, window_size, shape, per_key, overrides, count_cost, coalesce(anchor, '') AS anchor, slack, send_within, hosts, retry_after, queues,
    config_rate, config_window, config_shape
FROM call_limits ORDER BY name`
