package docs_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Tests say with a directive which rules of docs/guarantees.md they hold: //callq:guarantee 1 3.
// docs/guarantee-tests.md lists them. UPDATE=1 writes it anew.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	rules := guaranteeRules(documents(t)["docs/guarantees.md"])
	tests, err := guaranteeTests()
	if err != nil {
		t.Fatal(err)
	}
	for number, of := range tests {
		if rules[number] == "" {
			t.Errorf("docs/guarantees.md has no rule %d, which %s holds", number, of[0])
		}
	}
	var b strings.Builder
	b.WriteString("# The tests of each rule\n\nGenerated from the tests' `//callq:guarantee` directives (`make docs`).\n" +
		"[guarantees.md](guarantees.md) explains the rules.\n\n| | rule | tests |\n| --: | --- | --- |\n")
	for number := 1; number <= len(rules); number++ {
		if rules[number] == "" || len(tests[number]) == 0 {
			t.Errorf("rule %d of docs/guarantees.md, %q: %d tests hold it", number, rules[number], len(tests[number]))
			continue
		}
		fmt.Fprintf(&b, "| %d | %s | %s |\n", number, rules[number], byPackage(tests[number]))
	}
	const list = "docs/guarantee-tests.md"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(list, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(list); err != nil || string(got) != b.String() {
		t.Errorf("%s is stale: run `make docs` (%v)", list, err)
	}
}

// guaranteeRules are the rules by number: rows of tables that begin with it.
func guaranteeRules(page string) map[int]string {
	rules := map[int]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| (.*?) \|`).FindAllStringSubmatch(page, -1) {
		number, _ := strconv.Atoi(m[1])
		rules[number] = m[2]
	}
	return rules
}

// heldBy is a test that holds a rule.
type heldBy struct{ folder, name string }

func guaranteeTests() (map[int][]heldBy, error) {
	tests := map[int][]heldBy{}
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			for _, comment := range f.Doc.List {
				numbers, ok := strings.CutPrefix(comment.Text, "//callq:guarantee ")
				if !ok {
					continue
				}
				for field := range strings.FieldsSeq(numbers) {
					number, err := strconv.Atoi(field)
					if err != nil {
						return fmt.Errorf("%s: %s: %q is no number of a rule", path, f.Name.Name, field)
					}
					tests[number] = append(tests[number], heldBy{filepath.ToSlash(filepath.Dir(path)), f.Name.Name})
				}
			}
		}
		return nil
	})
	return tests, err
}

// byPackage writes tests as a table cell, sorted.
func byPackage(tests []heldBy) string {
	slices.SortFunc(tests, func(a, b heldBy) int { return cmp.Or(cmp.Compare(a.folder, b.folder), cmp.Compare(a.name, b.name)) })
	var b strings.Builder
	folder := ""
	for _, test := range tests {
		switch {
		case test.folder == folder:
			b.WriteString(", ")
		case folder != "":
			b.WriteString("; ")
		}
		if test.folder != folder {
			folder = test.folder
			fmt.Fprintf(&b, "`%s`: ", folder)
		}
		b.WriteString(test.name)
	}
	return b.String()
}
