package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
)

// ownLimit is what an API said last of its limit, beside what the configuration has of ours.
type ownLimit struct {
	Name   string         `db:"name"`
	Key    string         `db:"key"` // "": the limit is not per key, or the key has no rate of its own
	Rate   limit.Rate     `db:"rate"`
	Most   int64          `db:"most"`
	Resets *time.Duration `db:"resets"` // after the answer; nil: it does not say
}

// ownLimits compares limits of windows with what APIs say they are.
func ownLimits(ctx context.Context, pool schema.DB) (found []Finding, err error) {
	limits, err := admin.Collect[ownLimit](ctx, pool, "ask Postgres", ownLimitsSQL)
	for _, l := range limits {
		if f := l.compare(); f != nil {
			found = append(found, *f)
		}
	}
	return found, err
}

// compare is nil where both are the same, or the API's is of a longer window: then another limit of the API's is nearer to ours. Where it
// is reset very soon, or it does not say when, its window may be another one.
func (l ownLimit) compare() *Finding {
	if l.Most == l.Rate.Units || l.Resets != nil && *l.Resets > l.Rate.Window {
		return nil
	}
	name, set := "limit "+admin.Short(l.Name), fmt.Sprintf("set rate: %d/%s", l.Most, l.Rate.Length())
	if l.Key != "" {
		name, set = name+", key "+admin.Short(l.Key), fmt.Sprintf("set its override to %d", l.Most)
	}
	f := &Finding{Level: Note, What: fmt.Sprintf("%s allows %d per %s, the API says %d", name, l.Rate.Units, l.Rate.Length(), l.Most)}
	switch {
	case l.Most > l.Rate.Units:
		f.Fix = "nothing, if less is meant; to use all of it, " + set
	case l.Resets == nil || *l.Resets < l.Rate.Window/10:
		f.Fix = "if it counts in the same window, " + set
	default:
		f.Level, f.Fix = Problem, set
	}
	return f
}

// Of each limit the newest answer counts. A reset that was cut to the limit's retry_after does not say what the API's window is.
const ownLimitsSQL = `
SELECT * FROM (
    SELECT DISTINCT ON (l.name) l.name, CASE WHEN l.per_key AND l.overrides ? r.key THEN r.key ELSE '' END AS key,
        o.rate || CASE WHEN l.per_key AND l.overrides ? r.key THEN jsonb_build_object('units', l.overrides -> r.key) ELSE '{}' END AS rate,
        r.most, CASE WHEN r.reset_at - r.answered_at < l.retry_after THEN r.reset_at - r.answered_at END AS resets
    FROM callq.call_limits l
    CROSS JOIN LATERAL (
        SELECT coalesce(l.config, jsonb_build_object('units', l.rate, 'window', (extract(epoch FROM l.window_size) * 1e9)::bigint) || l.shape) AS rate
    ) o
    JOIN callq.call_remotes r ON r.limit_name = l.name AND (l.per_key OR r.key = '')
    WHERE l.window_size > '0' AND NOT l.count_cost AND coalesce(o.rate ->> 'algorithm', '') !~ 'bucket|counter'
      AND cardinality(l.queues) > 0 AND r.most > 0 AND r.answered_at > clock_timestamp() - interval '1 day'
    ORDER BY l.name, r.answered_at DESC
) newest
LIMIT 100`
