package maintenance

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// DryRun counts what Purge would remove, and removes nothing. It reads a batch at a time, so it holds
// no snapshot for long. After each batch, progress, unless it is nil, gets the totals so far.
//
// Of a call with more than a thousand attempts, Purge leaves some to its next run; DryRun counts them all.
func DryRun(ctx context.Context, pool *pgxpool.Pool, keep Retention, progress func(Purged)) (Purged, error) {
	var found Purged
	for _, walk := range []struct {
		what, sql string
		count     *int64
	}{
		{"calls", purgeableCallsSQL, &found.Calls},
		{"attempts", purgeableAttemptsSQL, &found.Attempts},
	} {
		args := keep.args()
		args["most"], args["after"], args["behind"] = purgeBatch, int64(0), int32(0)
		for more := true; more; {
			var n int64
			var id *int64 // nil: nothing was left
			var attempt *int32
			if err := pool.QueryRow(ctx, walk.sql, args).Scan(&id, &attempt, &n); err != nil {
				return found, fmt.Errorf("count %s to purge: %w", walk.what, err)
			}
			*walk.count += n
			if more = id != nil; more {
				args["after"], args["behind"] = *id, *attempt
			}
			if progress != nil {
				progress(found)
			}
		}
	}
	return found, nil
}

const purgeableCallsSQL = `
WITH seen AS MATERIALIZED (
    SELECT id, ` + oldEnough + ` AS old
    FROM call_queue q
    WHERE id > @after::bigint AND @behind::int = 0 ORDER BY id LIMIT @most
)
SELECT max(id), 0, count(*) FILTER (WHERE old) FROM seen`

// A call that would be removed itself is as good as gone.
const purgeableAttemptsSQL = `
WITH seen AS MATERIALIZED (
    SELECT call_id, attempt, ` + outOfReach + ` AND NOT EXISTS (
            SELECT 1 FROM call_queue q WHERE q.id = a.call_id AND ` + oldEnough + ` IS NOT TRUE) AS old
    FROM call_attempts a, (` + reachSQL + `) r
    WHERE (call_id, attempt) > (@after::bigint, @behind::int)
    ORDER BY call_id, attempt
    LIMIT @most
)
SELECT max(call_id), (SELECT attempt FROM seen ORDER BY call_id DESC, attempt DESC LIMIT 1),
    count(*) FILTER (WHERE old) FROM seen`
