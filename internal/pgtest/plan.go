package pgtest

import (
	"context"
	"encoding/json"
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

// Plan is the generic plan of a statement, under settings, as the scans that it makes. Arguments
// are $1, … or @names.
func Plan(t testing.TB, pool *pgxpool.Pool, settings map[string]string, sql string) []Scan {
	t.Helper()
	return explain(t, pool, settings, "COSTS", sql, nil).scans(nil, nil, false)
}

// Work runs a statement by its generic plan, under settings, and undoes it. It returns how many rows the
// plan's nodes handled in all, including those that a filter dropped: the statement's cost, however fast
// the machine is. Arguments are SQL literals.
func Work(t testing.TB, pool *pgxpool.Pool, settings map[string]string, sql string, args ...string) int {
	t.Helper()
	return int(explain(t, pool, settings, "ANALYZE, TIMING OFF", sql, args).rows())
}

// explain returns a statement's plan. Without args, its arguments are NULL.
func explain(t testing.TB, pool *pgxpool.Pool, settings map[string]string, options, sql string, args []string) node {
	t.Helper()
	sql, n := positional(t, sql)
	if args == nil {
		args = slices.Repeat([]string{"NULL"}, n)
	}
	values := ""
	if len(args) > 0 {
		values = "(" + strings.Join(args, ", ") + ")"
	}
	conn := connect(t, pool, settings)
	defer conn.Close(context.WithoutCancel(t.Context()))
	var text string
	_, err := conn.Exec(t.Context(), "PREPARE explained AS "+sql)
	if err == nil {
		_, err = conn.Exec(t.Context(), "BEGIN") // closing the connection undoes what the statement did
	}
	if err == nil {
		err = conn.QueryRow(t.Context(), "EXPLAIN ("+options+", FORMAT JSON) EXECUTE explained"+values).Scan(&text)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan
}

// connect opens a connection to the pool's database, with settings.
func connect(t testing.TB, pool *pgxpool.Pool, settings map[string]string) *pgx.Conn {
	t.Helper()
	config := pool.Config().ConnConfig.Copy()
	for name, value := range settings {
		config.RuntimeParams[name] = value
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// positional replaces @names by $1, …, and counts the arguments.
func positional(t testing.TB, sql string) (string, int) {
	t.Helper()
	names := pgx.NamedArgs{}
	for _, m := range regexp.MustCompile(`@([a-z_]+)`).FindAllStringSubmatch(sql, -1) {
		names[m[1]] = nil
	}
	if len(names) == 0 {
		n := 0
		for ; strings.Contains(sql, "$"+string(rune('1'+n))); n++ {
		}
		return sql, n
	}
	sql, args, err := names.RewriteQuery(t.Context(), nil, sql, nil)
	if err != nil {
		t.Fatal(err)
	}
	return sql, len(args)
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
