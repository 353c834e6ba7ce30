package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMain runs the tests in the repository's root: the pages name files from there.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// documents are the pages of the repository, with their texts.
func documents(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for _, file := range append(files, "README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.ToSlash(file)] = string(text)
	}
	return pages
}

// What a newcomer reads first stays short.
func TestLengths(t *testing.T) {
	t.Parallel()
	pages := documents(t)
	if n := strings.Count(pages["README.md"], "\n"); n > 120 {
		t.Errorf("README.md has %d lines, more than 120", n)
	}
	index := pages["docs/README.md"]
	for name := range pages {
		if base := filepath.Base(name); name != "README.md" && name != "docs/README.md" && !strings.Contains(index, "]("+base+")") {
			t.Errorf("docs/README.md has no line for %s", base)
		}
	}
}

var (
	fenced  = regexp.MustCompile("(?ms)^\\s*```.*?^\\s*```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noSlug  = regexp.MustCompile(`[^\pL\pN _-]`)
)

// anchors are the names under which GitHub links to the headings of a page.
func anchors(page string) []string {
	var list []string
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		list = append(list, strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return list
}

// Links between documents lead somewhere: to a file, and to a heading in it.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages := documents(t)
	for name, page := range pages {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := name
			if target != "" {
				file = filepath.ToSlash(filepath.Join(filepath.Dir(name), target))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(pages[file]), anchor) {
				t.Errorf("%s links to %s: %s has no such heading", name, m[1], file)
			}
		}
	}
}

var place = regexp.MustCompile("`([\\w./-]+\\.(?:go|sql)): ([\\w.]+)`")

// The documents name functions and statements as `file: name`, and each is there. Each step of a walk names one.
func TestNamedFunctionsExist(t *testing.T) {
	t.Parallel()
	pages := documents(t)
	for name, page := range pages {
		for _, m := range place.FindAllStringSubmatch(page, -1) {
			if names, err := namesIn(m[1]); err != nil {
				t.Errorf("%s names %s: %v", name, m[0], err)
			} else if !slices.Contains(names, m[2]) {
				t.Errorf("%s names %s: %s has no such function, method or constant", name, m[0], m[1])
			}
		}
	}
	for _, walk := range []struct {
		page, heading string
		steps         int
	}{
		{"docs/design.md", "## The way of a call", 26},
		{"docs/contributing.md", "### An insert", 4},
		{"docs/contributing.md", "### A claim", 6},
		{"docs/contributing.md", "### A close", 6},
	} {
		_, rest, _ := strings.Cut(pages[walk.page], walk.heading+"\n")
		way, _, _ := strings.Cut(rest, "\n#")
		steps := regexp.MustCompile(`(?m)^\d+\. .*$`).FindAllString(way, -1)
		if len(steps) != walk.steps {
			t.Errorf("%s, %s: %d steps, want %d", walk.page, walk.heading, len(steps), walk.steps)
		}
		for _, step := range steps {
			if !place.MatchString(step) {
				t.Errorf("%s, %s: no function as `file: name` in step %q", walk.page, walk.heading, step)
			}
		}
	}
}

// namesIn returns the functions, methods and constants of a Go file, or the functions of a migration.
func namesIn(path string) ([]string, error) {
	var names []string
	if filepath.Ext(path) == ".sql" {
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`CREATE FUNCTION (?:public\.)?([\w.]+)`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
		return names, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if values, ok := spec.(*ast.ValueSpec); ok {
					for _, name := range values.Names {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names, nil
}
