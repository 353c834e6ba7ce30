package config

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/callq/callq"
	"github.com/callq/callq/internal/limit"
)

const reference = "../../docs/configuration.md"

// docs/configuration.md is what the code says: keys, types, defaults and bounds from the struct, the words
// from config.yaml. UPDATE=1 writes it anew.
func TestReference(t *testing.T) {
	t.Parallel()
	got := writeReference(t)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(reference, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/configuration.md is stale: run `make docs` (-file +code):\n%s", diff)
	}
}

const referenceHead = `# Configuration

Every key of config.yaml, generated from the code (` + "`make docs`" + `). [config.yaml](../config.yaml) is the same as a
file: ` + "`callq config init`" + ` writes it, ` + "`callq config check`" + ` shows every mistake with its line, and ` + "`callq config show`" + `
what is in force and where it comes from. Editors complete and check it by [its schema](config.schema.json): see ` + "`callq config schema`" + `.

The file is the one that ` + "`-c`" + ` names, else ` + "`CALLQ_CONFIG`" + `, else ./config.yaml, else /etc/callq/config.yaml; it may
be missing unless it was named. A flag (` + "`--postgres-url`, `--redis-url`" + `) holds over the environment, that over the
file, and that over the default. An empty variable counts as none; lists are ` + "`a,b`" + ` there. Where no key gives
them, ` + "`DATABASE_URL`, `REDIS_URL`" + ` and libpq's ` + "`PG*`" + ` hold. ` + "`${VAR}` and `${VAR:-default}`" + ` expand inside values, never
in the text; ` + "`$${`" + ` stands for ` + "`${`" + `. A key whose name ends in _file names a file that holds the value.

SIGHUP reloads limits, queues, budgets, schedule and retention of ` + "`serve` and `dispatch`, and `http_task` of `serve` and `work`" + `;
the other sections need a restart, and so does a secret whose variable has changed.
`

func writeReference(t *testing.T) string {
	t.Helper()
	about := comments(t)
	var b strings.Builder
	b.WriteString(referenceHead)
	last := ""
	for _, s := range mustLoad(t, "limits: {NAME: {rate: 1/s}}\nbudgets: {NAME: {rate: 1/s}}\nqueues: {NAME: {}}\nhttp_task: {secrets: {NAME: {env: E, hosts: [h]}}}\nroutes: [{set: {task: t}}]", nil, nil).origin.settings {
		if strings.HasPrefix(s.path, "queues.default.") {
			continue
		}
		s.path = strings.ReplaceAll(s.path, "[0]", "[]")
		section, _, _ := strings.Cut(s.path, ".")
		if section = strings.TrimSuffix(section, "[]"); section != last {
			last = section
			fmt.Fprintf(&b, "\n## %s\n", section)
			if words := about[section]; words != "" {
				fmt.Fprintf(&b, "\n%s\n", words)
			}
			b.WriteString("\n| key | type | default | allowed | environment | meaning |\n| --- | --- | --- | --- | --- | --- |\n")
		}
		allowed := s.allowed()
		if strings.Contains(allowed, "|") {
			allowed = "`" + strings.ReplaceAll(allowed, "|", "` or `") + "`"
		}
		environment := code(variable(s.path))
		if section == "routes" { // a rule stands in the file
			environment = ""
		}
		meaning := about[strings.ReplaceAll(s.path, ".NAME", "")]
		for _, text := range []string{code(s.path), typeName(s.value.Type()), code(s.tag("default")), allowed, environment, meaning} {
			b.WriteString(strings.TrimRight("| "+strings.ReplaceAll(text, "|", "\\|"), " ") + " ")
		}
		b.WriteString("|\n")
	}
	return b.String()
}

func typeName(t reflect.Type) string {
	names := map[reflect.Type]string{
		reflect.TypeFor[int](): "number", reflect.TypeFor[bool](): "true or false", reflect.TypeFor[[]string](): "list",
		reflect.TypeFor[time.Duration](): "duration", reflect.TypeFor[Backoff](): "duration..duration",
		reflect.TypeFor[Bytes](): "size", reflect.TypeFor[limit.Rate](): "rate", reflect.TypeFor[Rates](): "rate, or a list", reflect.TypeFor[Overrides](): "keys to rates", reflect.TypeFor[Shares](): "names to parts",
	}
	return cmp.Or(names[t], "text")
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// comments are those of config.yaml by key, with what it has commented out too: limits.rate, postgres.url.
func comments(t *testing.T) map[string]string {
	t.Helper()
	text := regexp.MustCompile(`(?m)^( *)#(\S)`).ReplaceAllString(callq.ConfigYAML, "$1$2")
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	about := map[string]string{}
	var read func(n *yaml.Node, path string, depth int)
	read = func(n *yaml.Node, path string, depth int) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			child := join(path, key.Value)
			if (path == "limits" || path == "queues" || path == "budgets") && depth == 1 {
				child = path // a name
			}
			words := strings.TrimSpace(regexp.MustCompile(`(?m)\n?^# ?`).ReplaceAllString(key.HeadComment, " "))
			if words != "" && about[child] == "" {
				about[child] = words
			}
			if value.Kind == yaml.SequenceNode {
				for _, item := range value.Content {
					read(item, child+"[]", depth+1)
				}
			}
			if value.Kind == yaml.MappingNode {
				read(value, child, depth+1)
			}
		}
	}
	read(doc.Content[0], "", 0)
	return about
}
