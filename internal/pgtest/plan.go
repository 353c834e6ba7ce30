package pgtest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Scan is a place in a plan that reads a table.
type Scan struct {
	Table string
	Node  string   // "Index Scan", "Seq Scan", …
	Index string   // "": none
	Cond  string   // what the index is asked for; "": all of it
	Above []string // the nodes it feeds, the nearest first
	Again bool     // it reads the same rows for each row of something else
}

// Plan is the generic plan of a statement, under settings, as the scans that it makes. Arguments are $1, … or @names.
func Plan(t testing.TB, pool *pgxpool.Pool, settings map[string]string, sql string) []Scan {
	t.Helper()
	return explain(t, pool, settings, "COSTS", sql, nil).scans(nil, nil, false)
}

// Work runs a statement by its generic plan, under settings, and undoes it. It returns how many rows the plan's nodes handled
// in all, including those that a filter dropped: the statement's cost, however fast the machine is. Arguments are SQL literals.
func Work(t testing.TB, pool *pgxpool.Pool, settings map[string]string, sql string, args ...string) int {
	t.Helper()
	return int(explain(t, pool, settings, "ANALYZE, TIMING OFF", sql, args).rows())
}

// explain returns a statement's plan. Without args, its arguments are NULL.
func explain(t testing.TB, pool *pgxpool.Pool, settings map[string]string, options, sql string, args []string) node {
	t.Helper()
	ctx := t.Context()
	tx, err := pool.Begin(ctx)
	must(t, err)
	defer tx.Rollback(ctx)
	_, err = tx.Exec(ctx, `SELECT set_config(key, value, true) FROM jsonb_each_text($1)`, settings)
	must(t, err)
	numbered, _, err := pgx.NamedArgs{}.RewriteQuery(ctx, nil, sql, nil)
	must(t, err)
	statement, err := tx.Prepare(ctx, "explained", numbered)
	if err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	defer func() { _ = tx.Conn().Deallocate(ctx, "explained") }()
	if args == nil {
		args = slices.Repeat([]string{"NULL"}, len(statement.ParamOIDs))
	}
	values := ""
	if len(args) > 0 {
		values = "(" + strings.Join(args, ", ") + ")"
	}
	var plans []struct{ Plan node }
	must(t, tx.QueryRow(ctx, "EXPLAIN ("+options+", FORMAT JSON) EXECUTE explained"+values).Scan(&plans))
	return plans[0].Plan
}

type node struct {
	Type  string `json:"Node Type"`
	As    string `json:"Parent Relationship"`
	Table string `json:"Relation Name"`
	Index string `json:"Index Name"`
	Cond  string `json:"Index Cond"`
	Plans []node

	// Of a statement that was run: means of the node's loops.
	Loops  float64 `json:"Actual Loops"`
	Actual float64 `json:"Actual Rows"`
	Filter float64 `json:"Rows Removed by Filter"`
	Join   float64 `json:"Rows Removed by Join Filter"`
}

func (n node) rows() float64 {
	sum := n.Loops * (1 + n.Actual + n.Filter + n.Join)
	for _, p := range n.Plans {
		sum += p.rows()
	}
	return sum
}

// ofAnother is a column of another scan in a condition.
var ofAnother = regexp.MustCompile(`[a-z_0-9"]\.[a-z]`)

func (n node) scans(found []Scan, above []string, inner bool) []Scan {
	if strings.HasSuffix(n.Type, "Scan") && (n.Table != "" || n.Index != "") {
		found = append(found, Scan{n.Table, n.Type, n.Index, n.Cond, above, inner && !ofAnother.MatchString(n.Cond)})
	}
	for _, p := range n.Plans {
		again := n.Type == "Nested Loop" && p.As == "Inner" || inner && p.As != "InitPlan" && n.Type != "Materialize"
		found = p.scans(found, append([]string{n.Type}, above...), again)
	}
	return found
}

// Literals is an SQL array literal of n elements, which format makes from 1 to n.
func Literals(n int, format string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i+1)
	}
	return "'{" + strings.Join(list, ",") + "}'"
}

// Planned is a statement whose plan CheckPlans holds.
type Planned struct {
	SQL     string
	Ordered string // an index that is read in its order, and no further than to a limit
}

// CheckPlans checks the plans of statements while the tables are new, when they were analyzed while they were empty (for such a
// table every way costs the same), while calls wait and none is open, and when fillSQL has filled them. Each statement finds rows of
// the tables that grow by a condition on an index, and the same rows once. The tables whole are small, and may be read in any way.
func CheckPlans(t *testing.T, settings map[string]string, fillSQL string, whole []string, statements map[string]Planned) {
	t.Helper()
	pool := New(t)
	waitingSQL := "INSERT INTO public.call_queue (queue) SELECT 'default' FROM generate_series(1, 20000); ANALYZE"
	states := [][2]string{{"new", "SELECT"}, {"empty", "ANALYZE"}, {"waiting", waitingSQL}, {"full", fillSQL + ";\nANALYZE"}, {"huge", hugeSQL}}
	for _, state := range states {
		_, err := pool.Exec(t.Context(), state[1])
		must(t, err)
		for name, s := range statements {
			s.check(t, Plan(t, pool, settings, s.SQL), name+", on "+state[0]+" tables", whole)
		}
	}
}

// hugeSQL has the planner believe that tables are as large as some will get.
const hugeSQL = `
UPDATE pg_class c SET reltuples = t.rows
FROM (VALUES ('call_queue', 1e8), ('call_attempts', 3e8), ('call_open', 1e5), ('call_usage', 1e6), ('call_inbox', 1e6), ('call_flows', 1e6), ('call_segments', 1e6)) AS t (name, rows)
WHERE c.relname = t.name`

func (s Planned) check(t *testing.T, plan []Scan, name string, whole []string) {
	t.Helper()
	ordered := s.Ordered == ""
	for _, scan := range plan {
		if scan.byRows() || slices.ContainsFunc(whole, scan.of) {
			continue
		}
		if scan.Cond == "" {
			t.Errorf("%s: read without a condition on an index: %+v", name, scan)
		}
		if scan.Again {
			t.Errorf("%s: read again for each row: %+v", name, scan)
		}
		if scan.Index == s.Ordered {
			ordered = true
			if limit := slices.Index(scan.Above, "Limit"); limit < 0 || slices.Contains(scan.Above[:limit], "Sort") {
				t.Errorf("%s: sorted, or read to its end: %+v", name, scan)
			}
		}
	}
	if !ordered {
		t.Errorf("%s: does not read %s", name, s.Ordered)
	}
}

// byRows reports whether the scan reads nothing but rows that are known: those of its statement, those that an index below it
// found, or a sample.
func (s Scan) byRows() bool {
	return !strings.HasPrefix(s.Table, "call_") && !strings.HasPrefix(s.Index, "call_") ||
		slices.Contains([]string{"Bitmap Heap Scan", "Tid Scan", "Sample Scan"}, s.Node)
}

func (s Scan) of(table string) bool {
	return s.Table == table || s.Table == "" && strings.HasPrefix(s.Index, table+"_")
}

// FillSQL fills the tables with calls in all states, most of them waiting, and a larger ledger and usage.
const FillSQL = `
INSERT INTO callq.call_queues SELECT 'q' || i, '{api}', '', 3, '1 s', '1 min', '30 s', 'retry' FROM generate_series(1, 5) i;
INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, count_cost, slack, send_within, queues, applied_at, applied_by, epoch)
SELECT 'l' || i, 1, 100, '1 min', '60 ms', false, false, '1 s', '1 s', '{}', now(), 'test', callq.epoch() FROM generate_series(1, 20) i;
INSERT INTO public.call_queue (queue, key, status, expires_at)
SELECT 'q' || i % 5, CASE i % 3 WHEN 0 THEN '' ELSE 'k' || i % 1000 END, CASE i % 10 WHEN 0 THEN 'done' WHEN 1 THEN 'dispatched' ELSE 'new' END, CASE i % 100 WHEN 0 THEN now() + interval '1 h' END
FROM generate_series(1, 20000) i;
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now(), callq.epoch(), 'http', queue, 'http', '', '{l1}', '{""}', '{1}' FROM public.call_queue WHERE status = 'dispatched';
INSERT INTO public.call_attempts (call_id, attempt, cost, claimed_at, finished_at, arrived_by, outcome, queue, task, key, charged)
SELECT i, 1, 1, now(), now(), now(), 'done', 'q1', 'http', '', '[]' FROM generate_series(1, 20000) i;
INSERT INTO callq.call_usage SELECT 'l' || i % 20, '', now() + i * interval '1 ms', i % 4, 1 FROM generate_series(1, 20000) i;
INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) SELECT 'w' || i, 'http', '{http}', '{}', 100, now(), now() FROM generate_series(1, 10) i`
