package recovery

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// abandoned is an open attempt whose worker is not alive, so that it is not known whether its request was answered. It occupies its
// units until its deadline, unless its host answers a later request.
type abandoned struct {
	CallID  int64         `db:"call_id"`
	Attempt int32         `db:"attempt"`
	Token   int64         `db:"token"`
	SentBy  time.Time     `db:"sent_by"` // by then TCP had brought it to its host, or never will
	URL     string        `db:"url"`
	Within  time.Duration `db:"within"` // the arrive_within of its limits
	Host    string        `db:"-"`
}

const abandonedSQL = `
SELECT o.call_id, o.attempt, o.token, o.started_at + o.send_within + interval '5 seconds' AS sent_by,
    coalesce(left(q.call_data ->> 'url', 4096), '') AS url, l.within
FROM (SELECT * FROM callq.call_open WHERE batch >= $1 AND started_at < clock_timestamp() - interval '5 seconds' OFFSET 0) o
JOIN public.call_queue q ON q.id BETWEEN o.call_id AND o.call_id
CROSS JOIN LATERAL (SELECT max(arrive_within) AS within FROM callq.call_limits WHERE name = ANY(o.limits) AND proof = 'later') l
WHERE o.task = 'http' AND o.overtaken_at IS NULL AND o.send_within IS NOT NULL AND l.within IS NOT NULL
  AND NOT EXISTS (SELECT FROM callq.call_workers w WHERE w.id = o.worker AND callq.alive(w.heartbeat_at))
ORDER BY sent_by
LIMIT 500`

// overtake gives back the units of abandoned attempts whose hosts have answered a later request; of a host that has answered
// nothing for arrive_within, those of the oldest, as ledger.Prove does with attempts that have ended.
func (r *Recoverer) overtake(ctx context.Context, v View) (n int, err error) {
	rows, _ := r.Pool.Query(ctx, abandonedSQL, v.OpenFrom)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[abandoned])
	if err != nil || len(list) == 0 {
		return 0, ledger.Wrap("look for abandoned attempts", err)
	}
	last, hosts := map[string]time.Time{}, []string{}
	for i := range list {
		a := &list[i]
		if a.Host = httptask.Host(a.URL); a.Host == "" {
			continue
		}
		if _, known := last[a.Host]; !known {
			hosts = append(hosts, a.Host)
		}
		last[a.Host] = a.SentBy // they are in this order
	}
	if err := ledger.TellHosts(ctx, r.Pool, hosts, nil); err != nil {
		return 0, err
	}
	known, err := ledger.AnsweredHosts(ctx, r.Pool)
	if err != nil {
		return 0, err
	}
	written := map[string]time.Time{}
	for _, k := range known {
		written[k.Host] = k.Written
	}
	oldest := map[string]bool{}
	for _, a := range list {
		first := !oldest[a.Host]
		oldest[a.Host] = true
		if a.Host == "" || !first && written[a.Host].Before(a.SentBy.Add(ledger.ClockMargin)) {
			continue
		}
		tag, err := r.Pool.Exec(ctx, overtakeSQL, pgx.StrictNamedArgs{
			"call": a.CallID, "attempt": a.Attempt, "token": a.Token, "host": a.Host, "sent_by": a.SentBy, "last": last[a.Host],
			"within": min(a.Within, 24*time.Hour), "margin": ledger.ClockMargin,
		})
		if err != nil {
			return n, fmt.Errorf("overtake an abandoned attempt: %w", err)
		}
		n += int(tag.RowsAffected())
	}
	return n, nil
}

// overtakeSQL probes a host once: the second of two that would finds probed_at moved.
const overtakeSQL = `
WITH host AS MATERIALIZED (
    SELECT host, CASE WHEN written_at >= @sent_by::timestamptz + @margin::interval THEN answered_at END AS answered_at
    FROM callq.call_hosts
    WHERE host = @host
      AND (written_at >= @sent_by::timestamptz + @margin::interval
        OR greatest(@last::timestamptz, probed_at, answered_at) + @within::interval * (1 + (hashtext(host || @last::timestamptz) & 255) / 512.0) < clock_timestamp())
    FOR NO KEY UPDATE SKIP LOCKED
), probed AS (
    UPDATE callq.call_hosts h SET probed_at = clock_timestamp() FROM host WHERE h.host = host.host AND host.answered_at IS NULL
)
UPDATE callq.call_open o
SET overtaken_at = coalesce(host.answered_at, clock_timestamp())
FROM host
WHERE o.call_id = ANY (ARRAY[@call::bigint]) AND o.attempt = @attempt AND o.token = @token AND o.overtaken_at IS NULL`
