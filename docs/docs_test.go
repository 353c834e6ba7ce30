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

// generated are the documents that tests write. Their words stand in the code.
func generated() []string {
	return []string{"docs/cli.md", "docs/configuration.md", "docs/guarantee-tests.md"}
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

// prose returns what a page says outside its code blocks, a paragraph, list item or table cell each.
func prose(page string) []string {
	var parts []string
	var part strings.Builder
	end := func() {
		if text := strings.TrimSpace(part.String()); text != "" {
			parts = append(parts, text)
		}
		part.Reset()
	}
	fenced := false
	for line := range strings.Lines(page) {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "```") {
			fenced = !fenced
			end()
			continue
		}
		switch {
		case fenced:
		case text == "" || part.Len() == 0 && strings.HasPrefix(line, "    "):
			end()
		case strings.HasPrefix(text, "|"):
			end()
			parts = append(parts, strings.Split(strings.ReplaceAll(text, `\|`, ""), "|")...)
		case strings.HasPrefix(text, "#"):
			end()
			parts = append(parts, text)
		default:
			if marker := listMarker.FindString(text); marker != "" {
				end()
				text = text[len(marker):]
			}
			part.WriteString(text + " ")
		}
	}
	end()
	return parts
}

var (
	listMarker  = regexp.MustCompile(`^([-*]|\d+\.) `)
	codeSpan    = regexp.MustCompile("`[^`]*`")
	linkTarget  = regexp.MustCompile(`\]\([^)]*\)`)
	sentenceEnd = regexp.MustCompile(`[.!?][)"*_]*(\s+|$)`)
	isWord      = regexp.MustCompile(`[\pL\pN]`)
)

// sentences returns the sentences of some prose, with each code span as one word.
func sentences(text string) []string {
	text = linkTarget.ReplaceAllString(codeSpan.ReplaceAllString(text, "CODE"), "")
	return sentenceEnd.Split(text, -1)
}

// Long sentences are where the documents were hard to read.
func TestSentences(t *testing.T) {
	t.Parallel()
	const most = 30
	for name, page := range documents(t) {
		if slices.Contains(generated(), name) {
			continue
		}
		for _, part := range prose(page) {
			for _, sentence := range sentences(part) {
				words := 0
				for word := range strings.FieldsSeq(sentence) {
					if isWord.MatchString(word) {
						words++
					}
				}
				if words > most {
					t.Errorf("%s: a sentence of %d words, more than %d:\n%s", name, words, most, sentence)
				}
			}
		}
	}
}

// What a newcomer reads first stays short.
func TestLengths(t *testing.T) {
	t.Parallel()
	pages := documents(t)
	if n := strings.Count(pages["README.md"], "\n"); n > 120 {
		t.Errorf("README.md has %d lines, more than 120", n)
	}
	if n := len(strings.Fields(pages["docs/design.md"])); n > 3000 {
		t.Errorf("docs/design.md has %d words, more than 3,000", n)
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

// docs/design.md names functions and statements as `file: name`. Each is there.
func TestDesignNamesWhatExists(t *testing.T) {
	t.Parallel()
	design := documents(t)["docs/design.md"]
	_, rest, _ := strings.Cut(design, "## The way of a call\n")
	way, _, _ := strings.Cut(rest, "\n## ")
	steps := regexp.MustCompile(`(?m)^\d+\. .*$`).FindAllString(way, -1)
	if len(steps) < 10 {
		t.Errorf("docs/design.md: the way of a call has %d steps", len(steps))
	}
	for _, step := range steps {
		if !place.MatchString(step) {
			t.Errorf("docs/design.md: no function as `file: name` in step %q", step)
		}
	}
	for _, m := range place.FindAllStringSubmatch(design, -1) {
		if names, err := namesIn(m[1]); err != nil {
			t.Errorf("docs/design.md names %s: %v", m[0], err)
		} else if !slices.Contains(names, m[2]) {
			t.Errorf("docs/design.md names %s: %s has no such function, method or constant", m[0], m[1])
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
