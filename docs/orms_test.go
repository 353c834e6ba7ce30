package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	codeBlock = regexp.MustCompile("(?ms)^```\\w*\n(.*?)^```$")
	noLetter  = regexp.MustCompile(`\PL+`)
	space     = regexp.MustCompile(`\s+`)
)

// TestORMs holds that docs/orms.md has a section for each ORM of verification/producers, and that its code is the
// program's, whitespace apart.
func TestORMs(t *testing.T) {
	t.Parallel()
	page := documents(t)["docs/orms.md"]
	sections := map[string]string{}
	for _, section := range strings.Split(page, "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		sections[strings.ToLower(noLetter.ReplaceAllString(title, ""))] = text
	}
	programs := map[string]string{}
	root := os.DirFS("verification/producers")
	err := fs.WalkDir(root, ".", func(file string, entry fs.DirEntry, err error) error {
		name, _, inFolder := strings.Cut(file, "/")
		if err != nil || entry.IsDir() || !inFolder {
			return err
		}
		text, err := fs.ReadFile(root, file)
		programs[name] += string(text) + "\n"
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(programs) < 10 {
		t.Fatalf("%d programs in verification/producers", len(programs))
	}
	for name, program := range programs {
		blocks := codeBlock.FindAllStringSubmatch(sections[name], -1)
		if len(blocks) == 0 {
			t.Errorf("docs/orms.md has no section with code for %s", name)
		}
		for _, block := range blocks {
			if !strings.Contains(space.ReplaceAllString(program, ""), space.ReplaceAllString(block[1], "")) {
				t.Errorf("docs/orms.md, %s: not in verification/producers/%s:\n%s", name, name, block[1])
			}
		}
	}
	for name, section := range sections {
		if _, ok := programs[name]; !ok && codeBlock.MatchString(section) {
			t.Errorf("docs/orms.md: there is no verification/producers/%s", name)
		}
	}
}

// TestORMVersions holds that the table of docs/orms.md has the versions that a package.json or go.mod pins.
func TestORMVersions(t *testing.T) {
	t.Parallel()
	rows := regexp.MustCompile(`(?m)^\| \[[^]]*\]\(#(\w+)\) \| (\S+) \|`).FindAllStringSubmatch(documents(t)["docs/orms.md"], -1)
	versions := map[string]string{}
	for _, row := range rows {
		versions[row[1]] = row[2]
	}
	pins, err := filepath.Glob("verification/producers/*/*.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, pin := range pins {
		name := filepath.Base(filepath.Dir(pin))
		version, ok := versions[name]
		if !ok {
			t.Errorf("the table of docs/orms.md has no row for %s", name)
		}
		if base := filepath.Base(pin); base != "package.json" && base != "go.mod" {
			continue
		}
		text, err := os.ReadFile(pin)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), version) {
			t.Errorf("docs/orms.md has %s %s, which %s has not", name, version, pin)
		}
	}
}
