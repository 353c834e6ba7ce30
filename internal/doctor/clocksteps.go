package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// clockSteps finds limits that give out less since Postgres's clock was set: forward, while windows are longer by as
// much; or back, while what was charged before lies ahead.
func clockSteps(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	forward, err := collect[struct {
		Name  string
		By    time.Duration
		At    time.Time
		Until time.Time
	}](ctx, pool, gainedSQL)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, s := range forward {
		what := fmt.Sprintf("Postgres's clock was set forward by %s at %s: windows of limit %s are longer by as much until %s",
			tidy(s.By), s.At.UTC().Format(time.RFC3339), s.Name, s.Until.UTC().Format(time.RFC3339))
		found = append(found, one(Note, what, "nothing: what was used before the step counts for as long as it would have")...)
	}
	back, err := collect[struct {
		Name  string
		Ahead time.Duration
		Until time.Time
	}](ctx, pool, aheadSQL)
	if err != nil {
		return nil, err
	}
	for _, s := range back {
		what := fmt.Sprintf("Postgres's clock was set back: units of limit %s were used up to %s ahead of it, and count until %s",
			s.Name, tidy(s.Ahead), s.Until.UTC().Format(time.RFC3339))
		found = append(found, one(Problem, what, "it ends by itself; have NTP (chrony) slew the clock rather than step it")...)
	}
	return found, nil
}

const gainedSQL = `
SELECT l.name, g.by, g.at, g.at + l.window_size * 1.001 + l.send_within + interval '5 seconds' + l.slack
    + (SELECT sum(by) FROM call_clock_gains later WHERE later.id >= g.id AND later.by > '0') AS until
FROM call_clock_gains g CROSS JOIN call_limits l
WHERE g.by > '0' AND l.window_size > '0' AND g.at + l.window_size * 1.001 + l.send_within + interval '5 seconds' + l.slack
    + (SELECT sum(by) FROM call_clock_gains later WHERE later.id >= g.id AND later.by > '0') > clock_timestamp()
ORDER BY l.name, g.id`

// A request without an answer is charged up to slack ahead, in a bucket that is labelled with its end.
const aheadSQL = `
SELECT l.name, max(u.bucket) - clock_timestamp() AS ahead, max(u.bucket) + l.window_size * 1.001 AS until
FROM call_limits l JOIN call_usage u ON u.limit_name = l.name
WHERE u.bucket > clock_timestamp() + l.slack + coalesce(l.bucket_width, l.window_size / 200) + interval '10 seconds'
GROUP BY l.name, l.window_size
ORDER BY l.name`
