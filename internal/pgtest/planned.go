package pgtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Planned is a statement whose plan CheckPlans holds.
type Planned struct {
	SQL     string
	Uses    []string // scans of tables that grow: "index column", the column being one of its condition's
	Ordered string   // an index that is read in its order, and no further than to a limit
}

// CheckPlans checks the plans of statements, made while the tables are new, when they were analyzed
// while they were empty (for such a table every way costs the same), and when fillSQL has filled them: each reads
// the tables through what it Uses and by a condition, all of which it uses, and through nothing else, and
// the same rows once. The
// tables whole are small, and may be read in any way.
func CheckPlans(t *testing.T, settings map[string]string, fillSQL string, whole []string, statements map[string]Planned) {
	t.Helper()
	pool := New(t)
	for _, state := range []struct{ name, sql string }{{"new", "SELECT"}, {"empty", "ANALYZE"}, {"full", fillSQL + ";\nANALYZE"}} {
		if _, err := pool.Exec(t.Context(), state.sql); err != nil {
			t.Fatal(err)
		}
		for name, s := range statements {
			s.check(t, pool, settings, name+", on "+state.name+" tables", whole)
		}
	}
}

func (s Planned) check(t *testing.T, pool *pgxpool.Pool, settings map[string]string, name string, whole []string) {
	t.Helper()
	var used []string
	for _, scan := range Plan(t, pool, settings, s.SQL) {
		if scan.byRows() || slices.ContainsFunc(whole, scan.of) {
			continue
		}
		i := slices.IndexFunc(s.Uses, func(use string) bool {
			index, column, _ := strings.Cut(use, " ")
			return scan.Index == index && scan.Cond != "" && strings.Contains(scan.Cond, column)
		})
		if i < 0 {
			t.Errorf("%s: %+v, want one of %q", name, scan, s.Uses)
			continue
		}
		if scan.Again {
			t.Errorf("%s: %+v, the same for each row", name, scan)
		}
		used = append(used, s.Uses[i])
		if limit := slices.Index(scan.Above, "Limit"); scan.Index == s.Ordered && (limit < 0 || slices.Contains(scan.Above[:limit], "Sort")) {
			t.Errorf("%s: sorted, or read to its end: %+v", name, scan)
		}
	}
	for _, use := range s.Uses {
		if !slices.Contains(used, use) {
			t.Errorf("%s: does not use %s", name, use)
		}
	}
}

// byRows says whether the scan reads nothing but rows that are known: those of its statement, those that
// an index below it found, or a sample.
func (s Scan) byRows() bool {
	return !strings.HasPrefix(s.Table, "call_") && !strings.HasPrefix(s.Index, "call_") ||
		s.Node == "Bitmap Heap Scan" || s.Node == "Tid Scan" || s.Node == "Sample Scan"
}

func (s Scan) of(table string) bool {
	return s.Table == table || s.Table == "" && strings.HasPrefix(s.Index, table+"_")
}
