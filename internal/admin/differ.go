package admin

import (
	"context"
	"fmt"
	"maps"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// Want is what some of the live workers have of a setting.
type Want struct {
	By   []string `json:"by"`
	Rule string   `json:"rule"`
}

// HTTPDifferences are, by key of http_task, the settings in which live workers differ that take the task http, with
// what each has, the oldest first. Of secrets they have names and hosts, never a value.
func HTTPDifferences(ctx context.Context, db ledger.DB) (map[string][]Want, error) {
	rows, err := db.Query(ctx, httpSettingsSQL)
	if err != nil {
		return nil, fmt.Errorf("read the workers' http settings: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[httpSettingRow])
	if err != nil {
		return nil, fmt.Errorf("read the workers' http settings: %w", err)
	}
	wants := map[string][]Want{}
	for _, row := range list {
		wants[row.Key] = append(wants[row.Key], Want{By: row.By, Rule: row.Value})
	}
	maps.DeleteFunc(wants, func(_ string, list []Want) bool { return len(list) < 2 })
	return wants, nil
}

type httpSettingRow struct {
	Key   string   `db:"key"`
	Value string   `db:"value"`
	By    []string `db:"by"`
}

const httpSettingsSQL = `
SELECT s.key, s.value::text AS value, array_agg(w.id ORDER BY w.started_at, w.id) AS by
FROM call_workers w
CROSS JOIN jsonb_each(w.http) s
WHERE callq_alive(w.heartbeat_at)
GROUP BY 1, 2
ORDER BY min(w.started_at), 2`
