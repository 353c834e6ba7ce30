package ledger

import (
	"context"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Shut closes a limit, or a key of it, because the API refused a request.
type Shut struct {
	Limit, Key string
	CallID     int64 // whose attempt was refused; it is open
	Attempt    int32
	After      time.Duration // for how long, by the API; 0: it does not tell, and the limit closes for a spell
	First      time.Duration // the first spell; each is twice as long while refusals go on
	Most       time.Duration // of either
	Evenly     bool          // if others of its burst were refused, those that follow go evenly
	Reason     string
	By         string
}

// ShutLimit closes a limit. What the API answers to requests that went out before the limit closed does not make the spell longer, nor
// does it end a pause that lasts longer. Once it is over, one call is claimed as a probe (dispatcher), and the limit opens when
// that has an answer that is no refusal. The error is ErrUnknown if there is no such limit.
func ShutLimit(ctx context.Context, pool schema.DB, s Shut) error {
	shut, err := underLock(ctx, pool, "limit", s.Limit, shutSQL, pgx.StrictNamedArgs{
		"name": s.Limit, "key": s.Key, "call_id": s.CallID, "attempt": s.Attempt, "after": min(s.After, s.Most),
		"first": s.First, "most": s.Most, "even": limit.EvenFor, "evenly": s.Evenly, "reason": s.Reason, "by": s.By,
	})
	if err == nil && shut {
		err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			_, err := Recall(ctx, tx, "limit", []string{s.Limit}, s.Key, "its limit was closed: "+s.Reason)
			return err
		})
	}
	return Wrap("close limit "+s.Limit, err)
}

// shutSQL returns a row if it closes the limit, or for longer. Where it was closed since the request went out, the API refused several
// that came together: then calls go evenly. The audit has it once a minute: a limit that the API counts otherwise
// closes all the time.
const shutSQL = `
WITH was AS (
    SELECT p.*, coalesce(o.started_at, o.claimed_at) >= p.until AS since
    FROM callq.call_pauses p
    LEFT JOIN callq.call_open o ON o.call_id = @call_id AND o.attempt = @attempt
    WHERE p.what = 'limit' AND p.name = @name AND p.key = @key AND (p.spell IS NOT NULL OR p.until > clock_timestamp())
), next AS (
    SELECT spell, clock_timestamp() + CASE WHEN @after::interval > '0' THEN @after::interval ELSE spell END AS until
    FROM (
        SELECT least(coalesce((SELECT CASE WHEN since AND @after::interval = '0' THEN 2 * spell ELSE spell END FROM was),
            @first::interval), @most::interval) AS spell
    ) s
    WHERE @after::interval > '0' OR (SELECT spell IS NULL OR since FROM was) IS NOT FALSE
), shut AS (
    INSERT INTO callq.call_pauses AS p (what, name, key, until, reason, at, by, spell)
    SELECT 'limit', @name, @key, until, @reason, clock_timestamp(), @by, spell FROM next
    ON CONFLICT (what, name, key) DO UPDATE
    SET until = excluded.until, reason = excluded.reason, at = excluded.at, by = excluded.by, spell = excluded.spell,
        call_id = NULL, attempt = NULL, probed_at = NULL
    WHERE p.until < excluded.until
    RETURNING until
), audited AS (
    INSERT INTO callq.call_audit (at, by, what, name, change, reason)
    SELECT clock_timestamp(), @by, 'limit', @name, 'closed' || ` + forKeySQL + ` ||
        to_char(until AT TIME ZONE 'UTC', ' "until" YYYY-MM-DD"T"HH24:MI:SS"Z"'), @reason
    FROM shut
    WHERE NOT EXISTS (
        SELECT FROM (SELECT at, change FROM callq.call_audit WHERE what = 'limit' AND name = @name ORDER BY id DESC LIMIT 1) l
        WHERE l.change LIKE 'closed%' AND l.at > clock_timestamp() - interval '1 minute')
), evened AS (
    UPDATE callq.call_limits SET even_until = clock_timestamp() + @even::interval
    WHERE name = @name AND @evenly AND EXISTS (SELECT FROM was WHERE NOT since AND spell IS NOT NULL)
      AND (even_until < clock_timestamp() + @even::interval / 2) IS NOT FALSE
)
SELECT FROM shut`
