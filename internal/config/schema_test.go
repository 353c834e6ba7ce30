package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/callq/callq"
	"github.com/callq/callq/internal/limit"
)

const schemaFile = "../../docs/config.schema.json"

// docs/config.schema.json is what the code says, for editors. It is laxer than Load, which checks more. UPDATE=1 writes it anew.
func TestSchema(t *testing.T) {
	t.Parallel()
	s := schemaWriter{comments(t)}
	root := s.section(reflect.TypeFor[Config](), "")
	root["$schema"], root["title"] = "https://json-schema.org/draft/2020-12/schema", "callq's config.yaml"
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(schemaFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("docs/config.schema.json is stale: run `make docs` (-file +code):\n%s", diff)
	}
}

// schemaWriter makes JSON schemas of types. about has what config.yaml says of keys.
type schemaWriter struct{ about map[string]string }

type node = map[string]any

func (w schemaWriter) section(of reflect.Type, path string) node {
	properties := node{}
	for f := range of.Fields() {
		key := f.Tag.Get("key")
		if key == "" {
			continue
		}
		child := join(path, key)
		n := w.value(f, child)
		if words := cmp.Or(w.about[child], allowed(f)); words != "" {
			n["description"] = words
		}
		properties[key] = n
		if f.Tag.Get("secret") != "" {
			properties[key+"_file"] = node{"type": "string", "description": cmp.Or(w.about[child+"_file"], "A file that holds "+key+".")}
		}
	}
	return node{"type": []string{"object", "null"}, "additionalProperties": false, "properties": properties}
}

func (w schemaWriter) value(f reflect.StructField, path string) node {
	switch kind := f.Type.Kind(); {
	case kind == reflect.Map && f.Type.Elem().Kind() == reflect.Struct:
		return node{"type": []string{"object", "null"}, "additionalProperties": w.section(f.Type.Elem(), path)}
	case kind == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
		return node{"type": []string{"array", "null"}, "items": w.section(f.Type.Elem(), path+"[]")}
	case kind == reflect.Struct && len(keysOf(f.Type)) > 0:
		return w.section(f.Type, path)
	case kind == reflect.Map && f.Type.Elem().Kind() == reflect.Slice:
		return node{"type": []string{"object", "null"}, "additionalProperties": node{"anyOf": []node{scalar(f), {"type": "array", "items": scalar(f)}}}}
	case kind == reflect.Map:
		return node{"type": []string{"object", "null"}, "additionalProperties": scalar(f)}
	case kind == reflect.Slice: // a list of one may be written as its item
		return node{"anyOf": []node{scalar(f), {"type": "null"}, {"type": "array", "items": scalar(f)}}}
	}
	n := scalar(f)
	if text := f.Tag.Get("default"); text != "" {
		n["default"] = preset(f.Type, text)
	}
	return n
}

func preset(of reflect.Type, text string) any {
	switch of.Kind() {
	case reflect.Bool:
		return text == "true"
	case reflect.Int:
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
	}
	return text
}

const oneDuration = `([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h|d|w))+`

// scalar is the schema of one value. YAML has more ways to write one than JSON, and ${VAR} may stand in each.
func scalar(f reflect.StructField) node {
	bounds, words, _ := strings.Cut(allowed(f), "|")
	switch of := f.Type; {
	case of == reflect.TypeFor[time.Duration]():
		pattern := oneDuration
		if words != "" {
			pattern += "|" + words
		}
		return either(node{"type": "string", "pattern": "^(" + pattern + ")$"})
	case of == reflect.TypeFor[Backoff]():
		return either(node{"type": "string", "pattern": "^" + oneDuration + `(\.\.` + oneDuration + ")?$"})
	case of == reflect.TypeFor[Bytes]():
		return either(node{"type": "integer", "minimum": 0}, node{"type": "string", "pattern": "^[0-9]+ ?(KiB|MiB)?$"})
	case of.Kind() == reflect.Bool:
		return either(node{"type": "boolean"})
	case of.Kind() == reflect.Int:
		lo, hi, _ := strings.Cut(bounds, "..")
		number := node{"type": "integer"}
		for key, text := range map[string]string{"minimum": lo, "maximum": hi} {
			if bound, err := strconv.Atoi(text); err == nil {
				number[key] = bound
			}
		}
		return either(number, node{"type": "string", "pattern": "^[0-9]+(_[0-9]+)+$"})
	case of == reflect.TypeFor[limit.Rate]():
		return node{"type": []string{"string", "number"}}
	case ruleOf(f.Tag.Get("check")).check == nil && allowed(f) != "":
		return either(node{"enum": strings.Split(allowed(f), "|")})
	}
	return node{"type": []string{"string", "number", "boolean"}}
}

// allowed is what the reference has of a field.
func allowed(f reflect.StructField) string {
	return cmp.Or(f.Tag.Get("allowed"), ruleOf(f.Tag.Get("check")).allowed)
}

// either is one of some schemas, or a text with a variable.
func either(of ...node) node {
	return node{"anyOf": append(of, node{"type": "string", "pattern": `\$\{`})}
}

// What Load takes, the schema takes: config.yaml, as it is and with all that is commented out, and what the documents show. What
// editors should mark, it refuses.
func TestSchemaHolds(t *testing.T) {
	t.Parallel()
	if !strings.HasPrefix(callq.ConfigYAML, "# yaml-language-server: $schema=docs/config.schema.json\n") {
		t.Error("config.yaml does not begin with where its schema is")
	}
	compiler := jsonschema.NewCompiler()
	schema, err := compiler.Compile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	validate := func(text string) error {
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		return schema.Validate(value)
	}
	good := map[string]string{
		"config.yaml": callq.ConfigYAML, "uncommented": regexp.MustCompile(`(?m)^( *)#(\S)`).ReplaceAllString(callq.ConfigYAML, "$1$2"),
		"nothing": "limits:\nroutes:\nhttp_task:\n", "every key": everyKey,
		"variables": "postgres: {pool: '${POOL}'}\nhttp: {pages: '${PAGES:-true}'}\nlog: {level: '${LEVEL}'}\nretention: {done: '${DAYS}d'}\n",
		"one":       "worker: {labels: a}\nqueues: {q: {limits: [], max_waiting: 10_000, backoff: 1s}}\ncalls: {max_data: 1000}\n",
	}
	pages, _ := filepath.Glob("../../docs/*.md")
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
			if _, err := load("", []byte(m[1]), nil, nil); err == nil {
				good[page+": "+m[1]] = m[1]
			}
		}
	}
	for name, text := range good {
		if err := validate(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{
		"limit: {}", "log: {level: loud}", "postgres: {pool: 1}", "queues: {q: {timeout: 30}}", "queues: {q: {backoff: 1s-2s}}", "retention: {history: on}",
		"routes: {}", "limits: [a]", "worker: {concurrency: many}", "http: {pages: 'yes'}", "limits: {a: {rate: [{}]}}", "calls: {max_data: 1GiB}",
	} {
		if err := validate(text); err == nil {
			t.Errorf("%s is not refused", text)
		}
	}
}
