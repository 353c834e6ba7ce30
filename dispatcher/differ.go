package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// Want is what some of the live processes say of a limit or queue.
type Want struct {
	By   []string `json:"by"`
	Rule string   `json:"rule"`
}

// notPublished is what a process says of a limit or queue that its configuration does not have.
const notPublished = "not in its configuration"

// Differences are, by name, the limits and the queues of which live processes publish different
// rules, with what each wants, the oldest first. What holds instead is in Postgres.
func Differences(live []Published) (limits, queues map[string][]Want) {
	limits = differing(live, func(r Rules) map[string]string {
		said := map[string]string{}
		for _, l := range r.Limits {
			said[l.Name] = l.String()
		}
		return said
	})
	queues = differing(live, func(r Rules) map[string]string {
		said := map[string]string{}
		for _, q := range r.Queues {
			said[q.Name] = q.String()
		}
		return said
	})
	return limits, queues
}

// differing compares what rules say by name.
func differing(live []Published, by func(Rules) map[string]string) map[string][]Want {
	wants := map[string][]Want{}
	said := make([]map[string]string, len(live))
	for i, p := range live {
		said[i] = by(p.Rules)
		for name := range said[i] {
			wants[name] = nil
		}
	}
	for name := range wants {
		var list []Want
		for i, p := range live {
			rule, has := said[i][name]
			if !has {
				rule = notPublished
			}
			if same := slices.IndexFunc(list, func(w Want) bool { return w.Rule == rule }); same >= 0 {
				list[same].By = append(list[same].By, p.By)
			} else {
				list = append(list, Want{By: []string{p.By}, Rule: rule})
			}
		}
		if len(list) > 1 {
			wants[name] = list
		} else {
			delete(wants, name)
		}
	}
	return wants
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
WHERE w.beat_at > clock_timestamp() - interval '6 seconds'
GROUP BY 1, 2
ORDER BY min(w.started_at), 2`
