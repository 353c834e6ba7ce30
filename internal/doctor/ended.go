package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// How calls have ended lately.

// deadLetters notes that calls fail for good, more of them than before.
func deadLetters(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	var now, before int64
	if err := pool.QueryRow(ctx, deadLettersSQL).Scan(&now, &before); err != nil {
		return nil, err
	}
	if now <= before {
		return nil, nil
	}
	return one(Note, fmt.Sprintf("%d calls failed for good within the last hour, %d in the hour before", now, before),
		"callq calls list --status failed; when the cause is mended, callq calls retry --status failed"), nil
}

// Through call_queue_failed_idx.
const deadLettersSQL = `
SELECT count(*) FILTER (WHERE failed_at > clock_timestamp() - interval '1 hour'),
    count(*) FILTER (WHERE failed_at <= clock_timestamp() - interval '1 hour')
FROM (
    SELECT failed_at FROM call_queue
    WHERE failed_at > clock_timestamp() - interval '2 hours' ORDER BY failed_at DESC LIMIT 100000
) f`

type lateRow struct {
	Queue      string  `db:"queue"`
	Late       int64   `db:"late"`
	All        int64   `db:"all_of"`
	Limit      *string `db:"limit_name"`
	SendWithin *string `db:"send_within"`
}

// lateRequests finds queues whose requests are often not sent because their workers took longer than
// send_within: started, and not sent.
func lateRequests(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	rows, err := collect[lateRow](ctx, pool, lateSQL)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rows {
		fix := "callq work on more machines"
		if r.Limit != nil {
			fix = fmt.Sprintf("raise send_within of limit %s, which is %s, in the configuration; or %s",
				*r.Limit, *r.SendWithin, fix)
		}
		found = append(found, Finding{
			Level: Problem,
			What: fmt.Sprintf("of the last %d attempts of queue %s, %d were not sent: the worker was too late",
				r.All, short(r.Queue), r.Late),
			Fix: fix,
		})
	}
	return found, nil
}

// The attempts of the newest calls stand for the latest ones: the ledger has no index by time, and needs none.
const lateSQL = `
SELECT a.queue, a.late, a.all_of, t.name AS limit_name, t.send_within::text AS send_within
FROM (
    SELECT queue, count(*) AS all_of, count(*) FILTER (WHERE outcome = 'not_sent' AND started_at IS NOT NULL) AS late
    FROM (
        SELECT queue, outcome, started_at, finished_at FROM call_attempts
        ORDER BY call_id DESC, attempt DESC LIMIT 10000
    ) newest
    WHERE finished_at > clock_timestamp() - interval '1 hour' AND started_at IS NOT NULL
    GROUP BY queue
) a
LEFT JOIN LATERAL (
    SELECT name, send_within FROM call_limits WHERE a.queue = ANY(queues) ORDER BY send_within, name LIMIT 1
) t ON true
WHERE a.late >= 10 AND a.late * 20 >= a.all_of
ORDER BY a.late DESC
LIMIT 10`
