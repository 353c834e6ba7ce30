package callq_test

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/callq/callq/"

const (
	bcrypt     = "golang.org/x/crypto/bcrypt"
	asynq      = "github.com/hibiken/asynq"
	bubbletea  = "charm.land/bubbletea/v2"
	cobra      = "github.com/spf13/cobra"
	cron       = "github.com/robfig/cron/v3"
	goose      = "github.com/pressly/goose/v3"
	miniredis  = "github.com/alicebob/miniredis/v2"
	pgx        = "github.com/jackc/pgx/v5"
	prometheus = "github.com/prometheus/client_golang"
	redis      = "github.com/redis/go-redis/v9"
	sync       = "golang.org/x/sync/errgroup"
	sys        = "golang.org/x/sys"
	text       = "golang.org/x/text"
	yaml       = "go.yaml.in/yaml"
)

// TestImports: a package, of this module or of verification/, imports of ours and of other modules what its
// line allows, and of the standard library all but what its line forbids. Since that holds for each, a producer, which
// imports callqueue, links pgx and nothing heavier. Packages without a line may import anything but
// what only cmd or internal/config may; a line whose package is missing fails.
func TestImports(t *testing.T) {
	t.Parallel()
	imports := importsOf(t, ".")
	maps.Copy(imports, importsOf(t, "verification"))
	for _, rule := range []struct {
		name      string
		ours      []string
		modules   []string
		forbidden []string // of the standard library
	}{
		{name: "internal/schema", modules: []string{pgx}},
		{name: "callqueue", ours: []string{"internal/schema"}, modules: []string{pgx}},
		{name: "internal/limit", forbidden: []string{"database", "io", "log", "net", "os", "syscall"}},
		{name: "internal/hours", forbidden: []string{"database", "io", "log", "net", "os", "syscall"}},
		{name: "internal/advise", ours: []string{"internal/limit", "internal/words"}, forbidden: []string{"database", "io", "log", "net", "os", "syscall"}},
		{name: "internal/forecast", ours: []string{"internal/hours", "internal/limit"}, forbidden: []string{"database", "io", "log", "net", "os", "syscall"}},
		{name: "internal/ledger", ours: []string{"callqueue", "internal/limit", "internal/schema"}, modules: []string{pgx}},
		{name: "internal/ledger/verify", ours: []string{"callqueue", "internal/limit", "internal/schema", "internal/words"}, modules: []string{pgx}},
		{
			name:    "tasks",
			ours:    []string{"callqueue", "internal/alarm", "internal/budget", "internal/handoff", "internal/httptask", "internal/ledger", "internal/limit", "internal/outcome", "internal/schema", "internal/witness"},
			modules: []string{pgx, prometheus, redis},
		},
		{name: "internal/httptask", ours: []string{"internal/limit", "internal/outcome"}, modules: []string{sys, text}},
		{name: "internal/alarm", modules: []string{sys}},
		{name: "internal/outcome"},
		{name: "internal/words"},
		{name: "internal/witness", ours: []string{"internal/ledger", "internal/schema"}, modules: []string{pgx}},
		{
			name: "dispatcher", ours: []string{
				"callqueue", "internal/boottime", "internal/claim", "internal/handoff", "internal/history", "internal/ledger", "internal/ledger/verify", "internal/limit", "internal/maintenance",
				"internal/policy", "internal/recovery", "internal/schema",
			},
			modules: []string{cron, pgx, prometheus, redis},
		},
		{
			name: "internal/claim", ours: []string{
				"internal/backlog", "internal/budget", "internal/handoff", "internal/hours", "internal/ledger", "internal/limit", "internal/policy",
				"internal/pools", "internal/schema", "internal/usage",
			},
			modules: []string{pgx, prometheus, redis},
		},
		{name: "internal/config", ours: []string{"internal/budget", "internal/hours", "internal/limit", "internal/schema", "internal/words"}, modules: []string{cron, pgx, redis, yaml}},
		{
			name: "internal/policy", ours: []string{"callqueue", "internal/budget", "internal/hours", "internal/ledger", "internal/limit", "internal/backlog", "internal/schema", "internal/words"},
			modules: []string{pgx},
		},
		{
			name: "internal/recovery", ours: []string{
				"internal/schema",
				"callqueue", "internal/handoff", "internal/httptask", "internal/ledger", "internal/limit", "internal/backlog", "internal/policy", "internal/pools",
			},
			modules: []string{pgx},
		},
		{name: "internal/pools", ours: []string{"internal/handoff", "internal/ledger"}, modules: []string{pgx}},
		{name: "internal/maintenance", ours: []string{"internal/ledger", "internal/schema"}, modules: []string{pgx}},
		{name: "internal/history", ours: []string{"internal/ledger", "internal/schema"}, modules: []string{pgx}},
		{name: "internal/boottime", modules: []string{sys}},
		{name: "internal/backlog", ours: []string{"internal/schema"}, modules: []string{pgx}},
		{
			name: "internal/doctor", ours: []string{"internal/handoff", "internal/ledger", "internal/limit", "internal/backlog", "internal/recovery", "internal/admin", "migrations", "internal/schema", "internal/words"},
			modules: []string{pgx, redis},
		},
		{
			name: "internal/admin", ours: []string{"callqueue", "internal/advise", "internal/backlog", "internal/budget", "internal/forecast", "internal/hours", "internal/ledger", "internal/limit", "internal/policy", "internal/usage", "internal/words"},
			modules: []string{pgx},
		},
		{name: "internal/usage", ours: []string{"internal/ledger", "internal/limit", "internal/policy"}, modules: []string{pgx}},
		{
			name: "internal/actions", ours: []string{"callqueue", "internal/admin", "internal/ledger", "internal/limit", "internal/policy", "internal/schema", "internal/words"},
			modules: []string{pgx},
		},
		{
			name: "dispatcher/pages", ours: []string{"callqueue", "internal/access", "internal/actions", "internal/console", "internal/schema"},
			modules: []string{pgx},
		},
		{name: "internal/access", modules: []string{bcrypt}},
		{name: "internal/console", ours: []string{"callqueue", "internal/access", "internal/actions", "internal/admin", "internal/schema", "internal/words"}, modules: []string{pgx, sync}},
		{name: "internal/handoff", ours: []string{"internal/limit"}, modules: []string{asynq, pgx, redis}},
		{name: "migrations", ours: []string{"internal/schema"}, modules: []string{goose, pgx}},
		{name: "internal/local", modules: []string{miniredis, pgx, redis}},
		{name: "verification/fakeapi"},
		{name: "verification/model"},
		{name: "verification/oracle"},
		{name: "internal/pgtest", ours: []string{"migrations", "internal/schema"}, modules: []string{pgx}},
	} {
		list, exists := imports[rule.name]
		if !exists {
			t.Errorf("%s does not exist", rule.name)
		}
		for _, path := range list {
			switch name, ours := strings.CutPrefix(path, module); {
			case ours && !slices.Contains(rule.ours, name),
				!ours && !standard(path) && !anyWithin(path, rule.modules),
				standard(path) && anyWithin(path, rule.forbidden):
				t.Errorf("%s must not import %s", rule.name, path)
			}
		}
	}
	if list, exists := imports["cmd/callq"]; !exists {
		t.Error("cmd/callq does not exist")
	} else if !slices.Contains(list, "time/tzdata") {
		t.Error("cmd/callq must import time/tzdata: its image has no zones")
	}
	for name, list := range imports {
		for _, path := range list {
			if anyWithin(path, []string{bubbletea, cobra, module + "internal/config"}) && !strings.HasPrefix(name, "cmd/") {
				t.Errorf("%s must not import %s: only cmd does", name, path)
			}
			if anyWithin(path, []string{yaml}) && name != "internal/config" {
				t.Errorf("%s must not import %s: only internal/config does", name, path)
			}
		}
	}
}

// TestLinked: the program links nothing that only tests and developers need. What a bare machine lacks is
// installed by verification/install, before `make demo` and `make test` start.
func TestLinked(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/callq").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		if anyWithin(path, []string{"testing", module + "internal/pgtest", module + "internal/redistest", module + "verification"}) {
			t.Errorf("cmd/callq links %s", path)
		}
	}
}

// importsOf lists the imports, without tests', of every package of the module in dir.
func importsOf(t *testing.T, dir string) map[string][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-C", dir, "-e", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		paths := strings.Fields(line)
		all[strings.TrimPrefix(paths[0], module)] = paths[1:]
	}
	return all
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func anyWithin(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return path == folder || strings.HasPrefix(path, folder+"/")
	})
}

// TestGoModInstalls: `go install …/cmd/callq@version`, which README.md promises, refuses a module that replaces
// or excludes others.
func TestGoModInstalls(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`(?m)^(replace|exclude)\b.*`).FindAllString(string(text), -1); found != nil {
		t.Errorf("go.mod has %q", found)
	}
}
