package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// superusers looks whether what callq made belongs to one: some functions run with their owner's rights.
func superusers(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	rows, err := pool.Query(ctx, superusersSQL)
	if err != nil {
		return nil, err
	}
	owners, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(owners) == 0 {
		return nil, err
	}
	return one(Note, fmt.Sprintf("callq's tables or functions belong to a superuser, %s: who found a flaw in a function "+
		"that runs as its owner would have the whole server", strings.Join(owners, ", ")),
		"give them to a role that is none: docs/operating.md, Roles, has the statements"), nil
}

const superusersSQL = `
SELECT DISTINCT quote_ident(r.rolname)
FROM (
    SELECT relowner AS owner FROM pg_class
    WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue')) AND relname LIKE 'call%'
    UNION ALL
    SELECT proowner FROM pg_proc
    WHERE pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue'))
      AND (proname LIKE 'callq\_%' OR proname = 'enqueue_call')
) o
JOIN pg_roles r ON r.oid = o.owner
WHERE r.rolsuper
ORDER BY 1`
