package admin

import (
	"context"
	"maps"

	"github.com/callq/callq/internal/ledger"
)

// Want is what some of the live workers have of a setting.
type Want struct {
	By   []string `json:"by"`
	Rule string   `json:"rule"`
}

// HTTPDifferences returns the settings of http_task in which live workers differ, with what each has, the oldest first.
// Of secrets it has names and hosts, never a value.
func HTTPDifferences(ctx context.Context, db ledger.DB) (map[string][]Want, error) {
	rows, err := collect[struct {
		Key, Value string
		By         []string
	}](ctx, db, "read the workers' http settings", httpSettingsSQL)
	wants := map[string][]Want{}
	for _, row := range rows {
		wants[row.Key] = append(wants[row.Key], Want{By: row.By, Rule: row.Value})
	}
	maps.DeleteFunc(wants, func(_ string, list []Want) bool { return len(list) < 2 })
	return wants, err
}

const httpSettingsSQL = `
SELECT s.key, s.value::text AS value, array_agg(w.id ORDER BY w.started_at, w.id) AS by
FROM call_workers w
CROSS JOIN jsonb_each(w.http) s
WHERE callq_alive(w.heartbeat_at)
GROUP BY 1, 2
ORDER BY min(w.started_at), 2`
