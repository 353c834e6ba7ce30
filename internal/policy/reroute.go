package policy

import (
	"context"
	"fmt"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// RoutedBy is how many waiting calls a rule changes, discards, or leaves for an error.
type RoutedBy struct {
	Rule      string `json:"rule" db:"rule"`
	Moved     int64  `json:"moved" db:"moved"`
	Discarded int64  `json:"discarded" db:"discarded"`
	Failed    int64  `json:"failed" db:"failed"`
}

const routedAtOnce = 1000

// RouteWaiting puts the calls that wait through the rules in force, some at a time, and returns what each rule did; with dryRun, what it
// would do. Each part is a transaction: what was done before an error stays.
func RouteWaiting(ctx context.Context, pool schema.DB, dryRun bool) ([]RoutedBy, error) {
	rows, _ := pool.Query(ctx, `SELECT DISTINCT id FROM callq.call_backlog ORDER BY id`)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, ledger.Wrap("find what waits", err)
	}
	sums := map[string]*RoutedBy{}
	var all []RoutedBy
	for rest := ids; len(rest) > 0; {
		some := rest[:min(len(rest), routedAtOnce)]
		rest = rest[len(some):]
		rows, _ := pool.Query(ctx, wouldRouteSQL, some)
		found, err := pgx.CollectRows(rows, pgx.RowToStructByName[RoutedBy])
		if err == nil && !dryRun && len(found) > 0 {
			_, err = pool.Exec(ctx, `SELECT callq.apply_routes($1)`, some)
		}
		if err != nil {
			return nil, ledger.Wrap(fmt.Sprintf("put calls %d to %d through the rules", some[0], some[len(some)-1]), err)
		}
		for _, f := range found {
			if sums[f.Rule] == nil {
				sums[f.Rule] = &RoutedBy{Rule: f.Rule}
			}
			s := sums[f.Rule]
			s.Moved, s.Discarded, s.Failed = s.Moved+f.Moved, s.Discarded+f.Discarded, s.Failed+f.Failed
		}
	}
	rows, _ = pool.Query(ctx, `SELECT rule FROM callq.call_routes ORDER BY number`)
	rules, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, rule := range rules {
		if s := sums[rule]; s != nil {
			all = append(all, *s)
		}
	}
	return all, ledger.Wrap("read routes", err)
}

const wouldRouteSQL = `
SELECT t.rule, count(*) FILTER (WHERE t.ok AND r.discard IS NULL) AS moved, count(*) FILTER (WHERE t.ok AND r.discard IS NOT NULL) AS discarded,
    count(*) FILTER (WHERE NOT t.ok) AS failed
FROM callq.routes_of($1) r
CROSS JOIN LATERAL (SELECT unnest(r.rules) AS rule, true AS ok UNION ALL SELECT unnest(r.failed), false) t
GROUP BY t.rule`
