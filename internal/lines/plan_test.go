package lines

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

// The plans of all statements, made while the tables are empty and when they are full: each reads no more
// of them than it needs, through an index, in order and to a limit where it is only to read the first.
func TestPlans(t *testing.T) {
	t.Parallel()
	const key = "call_lines_pkey key"
	statements := map[string]struct {
		sql     string
		uses    []string // index, and a column of its condition
		ordered string   // an index that is read in its order, and no further than to a limit
	}{
		"intake":      {intakeSQL, []string{"call_news_at_idx at", key, "call_waiting_pkey seq", "call_queue_pkey id"}, "call_news_at_idx"},
		"wake due":    {wakeDueSQL, []string{"call_lines_wake_idx wake_at", key}, "call_lines_wake_idx"},
		"wake keys":   {wakeKeysSQL, []string{key}, ""},
		"wake onward": {wakeOnwardSQL, []string{key}, ""},
		"walk":        {walkSQL, []string{"call_lines_active_idx key"}, "call_lines_active_idx"},
		"entries":     {entriesSQL + " SELECT * FROM entries", []string{"call_waiting_pkey seq"}, "call_waiting_pkey"},
		"first":       {firstSQL, []string{"call_waiting_pkey seq", "call_queue_pkey id"}, "call_waiting_pkey"},
		"return":      {returnSQL, []string{"call_queue_pkey id"}, ""},
		"park":        {parkSQL, []string{key}, ""},
		"leave":       {leaveSQL, []string{key}, ""},
		"discard":     {discardSQL, []string{key, "call_waiting_pkey seq"}, ""},
		"drop":        {dropSQL, []string{key}, ""},
	}
	pool := pgtest.New(t)
	for _, state := range []string{"new", "empty", "full"} {
		sql := map[string]string{"new": "SELECT", "empty": "ANALYZE", "full": fillSQL}[state] // what was never analyzed is planned for otherwise
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		for name, s := range statements {
			var used []string
			for _, scan := range pgtest.Plan(t, pool, ledger.Settings(), s.sql) {
				if !strings.HasPrefix(scan.Table, "call_") && !strings.HasPrefix(scan.Index, "call_") ||
					slices.Contains([]string{"Bitmap Heap Scan", "Tid Scan"}, scan.Node) {
					continue
				}
				i := slices.IndexFunc(s.uses, func(use string) bool {
					index, column, _ := strings.Cut(use, " ")
					return scan.Index == index && strings.Contains(scan.Cond, column)
				})
				if i < 0 {
					t.Errorf("%s, on %s tables: %+v, want one of %q", name, state, scan, s.uses)
					continue
				}
				used = append(used, s.uses[i])
				if limit := slices.Index(scan.Above, "Limit"); scan.Index == s.ordered && (limit < 0 || slices.Contains(scan.Above[:limit], "Sort")) {
					t.Errorf("%s, on %s tables: sorted, or read to its end: %+v", name, state, scan)
				}
			}
			for _, use := range s.uses {
				if !slices.Contains(used, use) {
					t.Errorf("%s, on %s tables, does not use %s", name, state, use)
				}
			}
		}
	}
}

// What is new costs no look at the first call of its line: only what is there again may go before that.
func TestNewCallsAreNotCompared(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, ledger.Settings())
	args := pgx.StrictNamedArgs{"queue": "q", "since": (*time.Time)(nil), "now": time.Now(), "rows": newsMost, "calls": callsMost}
	rows, err := pool.Query(t.Context(), "EXPLAIN "+intakeSQL, pgx.QueryExecModeExec, args)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(plan, "\n"); !strings.Contains(text, "Filter: ((ids IS NOT NULL) AND again)") {
		t.Errorf("the first call is looked up for each row of news:\n%s", text)
	}
}

const fillSQL = `
INSERT INTO call_queue (queue, key, priority) SELECT 'q' || i % 5, 'k' || i % 1000, i % 3 FROM generate_series(1, 20000) i;
INSERT INTO call_lines (queue, key, priority, task, calls, tail, wake_at)
SELECT 'q' || i % 5, 'k' || i, 5, 'http', 2000, 20, CASE i % 3 WHEN 0 THEN now() + i * interval '1 s' END FROM generate_series(1, 20000) i;
INSERT INTO call_waiting (queue, key, priority, task, seq, at, ids)
SELECT 'q1', 'k' || i % 100, 5, 'http', i, now(), ARRAY[i] FROM generate_series(1, 20000) i;
ANALYZE`
