package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	clockSamples    = 5
	clockDifference = 500 * time.Millisecond // allowed between machines that both keep the time
)

// clocks compares this machine's clock with Postgres's. callq uses Postgres's alone, but if NTP keeps both and they
// differ, one of them is wrong.
func clocks(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	var ahead time.Duration
	within := time.Hour
	for range clockSamples { // the shortest round trip is the most precise
		var at time.Time
		asked := time.Now()
		if err := pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at); err != nil {
			return nil, err
		}
		if half := time.Since(asked) / 2; half < within {
			within, ahead = half, at.Sub(asked.Round(0).Add(half))
		}
	}
	return compareClocks(ahead, within), nil
}

// compareClocks judges by how much Postgres's clock is ahead, give or take within.
func compareClocks(ahead, within time.Duration) []Finding {
	where := "ahead of"
	if ahead < 0 {
		where = "behind"
	}
	what := fmt.Sprintf("Postgres's clock is %s %s this machine's, give or take %s", tidy(ahead.Abs()), where, tidy(within))
	if ahead.Abs()-within <= clockDifference {
		return one(OK, what, "")
	}
	return one(Problem, what, "have NTP (chrony) keep both; limits and run_at use Postgres's. Before you set that forward, "+
		"pause the limits for their longest window: callq limits pause NAME --for …")
}

// tidy rounds a duration to about three digits.
func tidy(d time.Duration) time.Duration {
	switch {
	case d > time.Minute:
		return d.Round(time.Second)
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

// Postgres's clock was set forward while a limit's windows are longer by that much, or back while usage that was
// charged before lies ahead. A request without an answer is charged up to slack ahead, in a bucket that is labelled
// with its end.
const clockStepsSQL = `
SELECT 'note' AS level, g.by AS took,
    format('Postgres''s clock was set forward by {took} at %s: windows of limit %s are longer by as much until %s',
        to_char(g.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), l.name,
        to_char(e.until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) AS what,
    'nothing: what was used before the step counts for as long as it would have' AS fix
FROM call_clock_gains g
CROSS JOIN call_limits l
CROSS JOIN LATERAL (
    SELECT g.at + l.window_size * 1.001 + l.send_within + interval '5 seconds' + l.slack + sum(later.by) AS until
    FROM call_clock_gains later WHERE later.id >= g.id AND later.by > '0'
) e
WHERE g.by > '0' AND l.window_size > '0' AND e.until > clock_timestamp()
UNION ALL
SELECT 'problem', max(u.bucket) - clock_timestamp(),
    format('Postgres''s clock was set back: units of limit %s were used up to {took} ahead of it, and count until %s',
        l.name, to_char((max(u.bucket) + l.window_size * 1.001) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
    'it ends by itself; have NTP (chrony) slew the clock rather than step it'
FROM call_limits l
JOIN call_usage u ON u.limit_name = l.name
WHERE u.bucket > clock_timestamp() + l.slack + coalesce(l.bucket_width, l.window_size / 200) + interval '10 seconds'
GROUP BY l.name, l.window_size`
