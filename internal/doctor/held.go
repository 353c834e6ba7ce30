package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/callq/callq/internal/recovery"
	"github.com/jackc/pgx/v5/pgxpool"
)

// heldRow is a transaction that holds rows of running calls.
type heldRow struct {
	Kind  string         `db:"kind"` // as in Holder
	Name  string         `db:"name"`
	Who   string         `db:"who"`
	Does  string         `db:"does"`
	Age   *time.Duration `db:"age"` // nil: it is another role's, and ours may not see
	Calls int            `db:"calls"`
	IDs   string         `db:"ids"`
}

// heldRows finds transactions that stay open on the rows of running calls: how those ended cannot be written, nor
// can they be swept, and so their units and slots stay taken.
func heldRows(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	rows, err := collect[heldRow](ctx, pool, heldSQL)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rows {
		if r.Age == nil {
			what := fmt.Sprintf("%s %s (%s) holds rows of %d running calls (%s); for how long, this role may not see", r.Kind, r.Name, r.Who, r.Calls, r.IDs)
			found = append(found, one(Note, what, "run doctor as the tables' owner, or GRANT pg_monitor to its role")...)
			continue
		}
		what := fmt.Sprintf("%s %s (%s) has held rows of %d running calls (%s) for %s", r.Kind, r.Name, r.Who, r.Calls, r.IDs, tidy(*r.Age))
		if r.Does != "" {
			what += "; it is " + r.Does
		}
		found = append(found, Finding{
			Level: Problem, What: what + "; their outcomes cannot be written meanwhile",
			Fix: "commit it, or " + Holder{Kind: r.Kind, Name: r.Name}.End(),
		})
	}
	return found, nil
}

// Who changes or locks a row writes its transaction's id there, as xmax, and holds a lock on that id. Several who share
// it stand there as a multixact: xmax does not say that it is one, but those that there are lie in a range. What callq
// does itself takes no second; nor is it named where the age of others' transactions is hidden.
const heldSQL = `
SELECT kind, name, who, does, age, count(DISTINCT id)::int AS calls, array_to_string((array_agg(DISTINCT id))[:10], ', ') AS ids
FROM (
    SELECT r.id, CASE WHEN p.gid IS NULL THEN 'session' ELSE 'prepared transaction' END AS kind,
        coalesce(p.gid, a.pid::text) AS name, coalesce(p.owner::text, concat_ws(', ', a.usename, nullif(a.application_name, ''))) AS who,
        concat_ws(': ', a.state, left(regexp_replace(a.query, '\s+', ' ', 'g'), 80)) AS does,
        clock_timestamp() - coalesce(p.prepared, a.xact_start) AS age, a.application_name AS application
    FROM (
        SELECT q.id, q.xmax AS holder FROM call_open o JOIN call_queue q ON q.id BETWEEN o.call_id AND o.call_id
        UNION ALL
        SELECT call_id, xmax FROM call_open
    ) r
    CROSS JOIN LATERAL (
        SELECT r.holder AS xid
        UNION ALL
        SELECT m.xid FROM pg_get_multixact_members(CASE
            WHEN mxid_age(r.holder) BETWEEN 1 AND (SELECT max(mxid_age(datminmxid)) FROM pg_database) THEN r.holder END) m
    ) h
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = h.xid AND l.mode = 'ExclusiveLock' AND l.granted
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN pg_prepared_xacts p ON p.transaction = h.xid
) h
WHERE age > interval '2 seconds' OR age IS NULL AND application <> 'callq'
GROUP BY kind, name, who, does, age
ORDER BY age DESC
LIMIT 10`

type asideRow struct {
	ID  int64  `db:"id"`
	Why string `db:"why"`
}

// setAside finds calls that sweepers leave alone, for a statement that has one of them errs.
func setAside(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	rows, err := collect[asideRow](ctx, pool, setAsideSQL, recovery.IsolatedMessage)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rows {
		found = append(found, Finding{
			Level: Problem, What: fmt.Sprintf("call %d: %s", r.ID, strings.TrimSpace(r.Why)),
			Fix: fmt.Sprintf("see what is wrong with it (SELECT * FROM call_queue WHERE id = %d) and with the table's triggers and constraints; dispatchers try again each minute", r.ID),
		})
	}
	return found, nil
}

const setAsideSQL = `
SELECT id, left(error_message, 200) AS why
FROM (
    SELECT q.id, q.error_message FROM call_open o JOIN call_queue q ON q.id BETWEEN o.call_id AND o.call_id
    UNION ALL
    SELECT id, error_message FROM call_queue WHERE expires_at <= clock_timestamp() AND status IN ('new', 'error')
) c
WHERE starts_with(error_message, $1)
ORDER BY id
LIMIT 10`
