package pgtest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Work runs a statement by its generic plan, under settings, and undoes it. It returns how many rows the
// plan's nodes handled in all, those included that they found for nothing: what a statement costs,
// whatever else the machine does. Arguments are literals of SQL.
func Work(t testing.TB, pool *pgxpool.Pool, settings map[string]string, sql string, args ...string) int {
	t.Helper()
	conn := connect(t, pool, settings)
	defer conn.Close(context.WithoutCancel(t.Context()))
	var text string
	sql, _ = positional(t, sql)
	values := ""
	if len(args) > 0 {
		values = "(" + strings.Join(args, ", ") + ")"
	}
	_, err := conn.Exec(t.Context(), "PREPARE worked AS "+sql)
	if err == nil {
		_, err = conn.Exec(t.Context(), "BEGIN")
	}
	if err == nil {
		err = conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE worked"+values).Scan(&text)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	var plans []struct{ Plan worked }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	return int(plans[0].Plan.rows())
}

// worked is a node of a plan that was run. Its figures are means of its loops.
type worked struct {
	Loops   float64 `json:"Actual Loops"`
	Rows    float64 `json:"Actual Rows"`
	Refused float64 `json:"Rows Removed by Filter"`
	Apart   float64 `json:"Rows Removed by Join Filter"`
	Plans   []worked
}

func (w worked) rows() float64 {
	sum := w.Loops * (1 + w.Rows + w.Refused + w.Apart)
	for _, p := range w.Plans {
		sum += p.rows()
	}
	return sum
}

// Literals are n array elements, made by format from 1 to n.
func Literals(n int, format string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i+1)
	}
	return "'{" + strings.Join(list, ",") + "}'"
}
