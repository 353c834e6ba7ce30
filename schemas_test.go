package callq_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every statement that ships names the schema of each table, sequence and function of callq's: whatever the search_path of a
// session is, it finds callq's own, and nobody else's.
func TestSQLNamesSchemas(t *testing.T) {
	t.Parallel()
	names := regexp.MustCompile(`CREATE (?:TABLE|VIEW|SEQUENCE|FUNCTION) (callq|public)\.(\w+)`)
	own := []string{}
	migrations, err := filepath.Glob("migrations/*.sql")
	if err != nil || len(migrations) == 0 {
		t.Fatal(err)
	}
	texts := map[string]string{} // by the place
	for _, path := range append(migrations, "migrations/roles/roles.sql") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range names.FindAllStringSubmatch(string(text), -1) {
			if strings.HasPrefix(m[2], "call_") {
				own = append(own, m[2])
			}
		}
		texts[path] = regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(string(text), "")
	}
	if len(own) < 20 {
		t.Fatalf("found %d names in the migrations", len(own))
	}
	for _, dir := range []string{"callqueue", "cmd", "dispatcher", "internal", "tasks"} {
		if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "internal/pgtest/") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					texts[files.Position(lit.Pos()).String()] = lit.Value
				}
				return true
			})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	// A table stands after one of these words, a function before its arguments, and whatever is looked up by name in quotes.
	all := strings.Join(own, "|")
	bare := regexp.MustCompile(`(?:^|[^R] )\b(?:FROM|JOIN|INTO|UPDATE|USING|TABLE|ONLY|LOCK|TRUNCATE|VACUUM)\s+(` + all + `)\b[^.]` +
		`|['(\s](call_\w+)'::regclass|to_regclass\('(call_\w+)'|[^.\w](enqueue_call|callq_\w+)\(`)
	for place, text := range texts {
		if found := bare.FindString(text); found != "" {
			t.Errorf("%s: %q names no schema", place, found)
		}
	}
}
