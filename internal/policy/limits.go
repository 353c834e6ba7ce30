package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
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
    per_key, nullif(overrides, '{}') AS overrides, count_cost, coalesce(anchor, '') AS anchor, slack, proof, arrive_within, send_within,
    nullif(hosts, '{}') AS hosts, retry_after, headers, trust, nullif(shares, '{}') AS shares, queues
FROM callq.call_limits`

func (row limitRow) String() string {
	if row.Config == nil {
		return row.Limit.String()
	}
	return fmt.Sprintf("%s (set; config: %s)", row.Limit, row.Config)
}

// onlyRaised reports whether now counts the same calls as row, in the same way, and allows no less.
func (row limitRow) onlyRaised(now limitRow) bool {
	return row.less(now) == 0 && now.Rate.AtLeast(row.Rate) && now.PerKey == row.PerKey && now.CountCost == row.CountCost &&
		now.Anchor == row.Anchor && now.Slack == row.Slack && now.Proof == row.Proof && now.ArriveWithin == row.ArriveWithin && now.SendWithin == row.SendWithin &&
		slices.Equal(now.Queues, row.Queues)
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
		(now.Rate.Returns() != limit.Evenly || now.Rate.AtLeast(row.Rate))
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
	names := []string{}
	for _, l := range p.Limits {
		was, now := old[l.Name], limitRow{Limit: l, Queues: p.queuesOf(l.Name)}
		if was.Config != nil && was.Config.Comparable(l.Rate) && now.overridesFit(was.Rate) { // an override stays
			now.Config, now.Rate = &l.Rate, was.Rate
		}
		if err := a.changeLimit(ctx, was, now); err != nil {
			return err
		}
		names = append(names, l.Name)
	}
	a.dropped, err = a.remove(ctx, "limit", "removed", dropLimitsSQL, names, a.who.By)
	return err
}

const dropLimitsSQL = `
UPDATE callq.call_limits
SET version = version + 1, queues = '{}', applied_at = clock_timestamp(), applied_by = $2
WHERE name <> ALL($1) AND queues <> '{}'
RETURNING name`

// changeLimit writes a limit that is new, or no longer as it was. It closes one whose usage may not reach back far enough. What
// may be missing stays known if the limit is bounded, except for what it allows less.
func (a *application) changeLimit(ctx context.Context, was, now limitRow) error {
	if reflect.DeepEqual(was, now) {
		return nil
	}
	if !was.onlyRaised(now) {
		a.recall = append(a.recall, was.Queues...)
	}
	_, err := a.tx.Exec(ctx, putLimitSQL, pgx.StrictNamedArgs{
		"name": now.Name, "rate": now.Rate.Units, "window": now.Rate.Window, "shape": now.Rate.Shape,
		"bucket_width": now.Rate.Bucket(), "per_key": now.PerKey, "overrides": now.Overrides, "count_cost": now.CountCost,
		"anchor": now.Anchor, "slack": now.Slack, "proof": now.Proof, "arrive_within": now.ArriveWithin, "send_within": now.SendWithin, "hosts": now.Hosts,
		"retry_after": now.RetryAfter, "headers": now.Headers, "trust": now.Trust, "shares": now.Shares, "queues": now.Queues, "config": now.Config, "by": a.who.By,
		"shut": was.reachesShort(now), "bounded": was.bounded(now), "less": was.less(now),
	})
	if err != nil {
		return fmt.Errorf("write limit %q: %w", now.Name, err)
	}
	a.put = append(a.put, now.Name)
	a.wake = append(a.wake, now.Queues...)
	a.changed("limit", now.Name, now.String())
	return nil
}

// applied_at is read once the row is locked: claims under the former version came before it.
const putLimitSQL = `
INSERT INTO callq.call_limits AS l (name, version, rate, window_size, shape, bucket_width, per_key, overrides, count_cost, anchor,
    slack, proof, arrive_within, send_within, hosts, retry_after, headers, trust, shares, queues, config, applied_at, applied_by, epoch)
SELECT @name, coalesce(max(c.version), 0) + 1, @rate, @window::interval, @shape::jsonb, @bucket_width::interval,
    @per_key::boolean, coalesce(nullif(@overrides::jsonb, 'null'), '{}'), @count_cost::boolean, nullif(@anchor, ''),
    @slack::interval, @proof, @arrive_within::interval, @send_within::interval, coalesce(@hosts::text[], '{}'), @retry_after::interval, @headers::jsonb, @trust,
    coalesce(nullif(@shares::jsonb, 'null'), '{}'), @queues::text[],
    nullif(@config::jsonb, 'null'), clock_timestamp(), @by, callq.epoch()
FROM callq.call_limit_versions c WHERE c.limit_name = @name
ON CONFLICT (name) DO UPDATE
SET version = excluded.version, rate = excluded.rate, window_size = excluded.window_size, shape = excluded.shape,
    bucket_width = CASE WHEN @shut OR (l.window_size, l.shape) <> (excluded.window_size, excluded.shape) THEN excluded.bucket_width
        ELSE l.bucket_width END, -- what is charged stays in the buckets that it is in
    per_key = excluded.per_key, overrides = excluded.overrides,
    count_cost = excluded.count_cost, anchor = excluded.anchor, slack = excluded.slack, proof = excluded.proof,
    arrive_within = excluded.arrive_within, send_within = excluded.send_within,
    hosts = excluded.hosts, retry_after = excluded.retry_after, headers = excluded.headers, trust = excluded.trust, shares = excluded.shares, queues = excluded.queues, config = excluded.config,
    applied_at = clock_timestamp(), applied_by = excluded.applied_by,
    complete_since = CASE WHEN @shut THEN NULL ELSE l.complete_since END,
    known_at = CASE WHEN @bounded THEN l.known_at END, known_less = l.known_less + @less::bigint, even_until = NULL`

// ErrRate means that a limit cannot have a rate.
var ErrRate = errors.New("it cannot have this rate")

// Override puts a rate in force instead of the configuration's, until Reset. If it is lower, unstarted attempts are
// recalled: once Override returns, nothing starts beyond the new rate. It returns what changed, a line each. The error is ledger.ErrUnknown if there is no such limit.
func Override(ctx context.Context, pool schema.DB, name string, rate limit.Rate, who ledger.Author) ([]string, error) {
	return onLimit(ctx, pool, "set", name, who, func(ctx context.Context, a *application, was limitRow) error {
		is, now := was.Rate, was
		to, err := is.Set(rate)
		switch atOnce := rate.Window == 0 && rate.Period == ""; {
		case atOnce != (is.Window == 0):
			err = errors.New("a concurrency takes a whole number, such as 20, any other limit a rate, such as 100/1h")
		case err == nil && !was.overridesFit(to):
			err = errors.New("keys have units of their own in its window: change those in the configuration")
		}
		if err != nil {
			return fmt.Errorf("%w: it is %s: %w", ErrRate, is, err)
		}
		now.Rate, now.Config = to, cmp.Or(was.Config, &is)
		return a.changeLimit(ctx, was, now)
	})
}

// Reset puts the configuration's rate in force again.
func Reset(ctx context.Context, pool schema.DB, name string, who ledger.Author) ([]string, error) {
	return onLimit(ctx, pool, "reset", name, who, func(ctx context.Context, a *application, was limitRow) error {
		now := was
		now.Rate, now.Config = *cmp.Or(was.Config, &was.Rate), nil
		return a.changeLimit(ctx, was, now)
	})
}

// onLimit changes one limit that queues use. Their rows are locked first, as claims do it.
func onLimit(
	ctx context.Context, pool schema.DB, verb, name string, who ledger.Author, change func(context.Context, *application, limitRow) error,
) ([]string, error) {
	changes, err := apply(ctx, pool, who, func(ctx context.Context, a *application) error {
		rows, err := collect(ctx, a.tx, pgx.RowToStructByName[limitRow], limitsSQL+` WHERE name = $1 AND queues <> '{}'`, name)
		if err != nil {
			return fmt.Errorf("read the limit: %w", err)
		}
		if len(rows) == 0 {
			return ledger.ErrUnknown
		}
		if _, err := a.tx.Exec(ctx, lockQueuesSQL, rows[0].Queues); err != nil {
			return fmt.Errorf("lock the queues: %w", err)
		}
		return change(ctx, a, rows[0])
	})
	return changes, ledger.Wrap(fmt.Sprintf("%s limit %q", verb, name), err)
}

const lockQueuesSQL = `SELECT FROM callq.call_queues WHERE name = ANY($1) ORDER BY name COLLATE "C" FOR NO KEY UPDATE`

// ErrUncounted means that a limit cannot be opened yet.
var ErrUncounted = errors.New("what it has used is not counted yet: that waits until attempts under its former rule have ended")

// Open counts nothing as missing from a limit any more, nor as in doubt, on the word of an operator who knows what was sent and
// what has arrived. It returns what changed, a line each. The reason is for the audit and for verify. The error is ledger.ErrUnknown if there
// is no such limit, and ErrUncounted if it is closed until it is counted.
func Open(ctx context.Context, pool schema.DB, name string, who ledger.Author) ([]string, error) {
	return onLimit(ctx, pool, "open", name, who, func(ctx context.Context, a *application, l limitRow) error {
		var counted, missing bool
		if err := a.tx.QueryRow(ctx, missingSQL, name).Scan(&counted, &missing); err != nil {
			return err
		}
		if !counted {
			return ErrUncounted
		}
		arrived, err := ledger.LetOff(ctx, a.tx, name)
		if err != nil || !missing && arrived == 0 {
			return err
		}
		a.wake = l.Queues
		a.changed("limit", name, "opened")
		_, err = a.tx.Exec(ctx, foundSQL, name)
		return err
	})
}

const missingSQL = `
SELECT complete_since IS NOT NULL, missing_until IS NOT NULL FROM callq.call_limits WHERE name = $1 FOR NO KEY UPDATE`

const foundSQL = `UPDATE callq.call_limits SET missing_until = NULL, known_at = NULL, known_less = 0 WHERE name = $1`
