package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Sources by strength.
const (
	rankDefault = iota
	rankFile
	rankEnv
	rankFlag
)

// source is where a value stands. The zero source is the default.
type source struct {
	rank         int
	name         string // of the file, variable or flag
	line, column int    // in a file, from 1
	via          string // the file of a secret, or the variables that the value names
}

func (s source) String() string {
	switch {
	case s.rank == rankDefault:
		return "default"
	case s.line > 0:
		return s.name + ":" + strconv.Itoa(s.line)
	}
	return s.name
}

func (l *loader) at(n *yaml.Node) source {
	return source{rank: rankFile, name: l.file, line: n.Line, column: n.Column}
}

// itemSource is where item i of a list stands: its own place in a file, the list's elsewhere.
func (l *loader) itemSource(path string, i int) source {
	list := l.from[path]
	if item, ok := l.from[itemPath(path, i)]; ok && list.rank == rankFile {
		return item
	}
	return list
}

func itemPath(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// readYAML reads the file over the defaults in root. Nodes are read by hand, by their text: that
// gives each mistake its place, and keys such as 0042 stay what they are.
func (l *loader) readYAML(text []byte, root reflect.Value) {
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	l.lines = regexp.MustCompile(`\r\n|[\n\r\x{85}\x{2028}\x{2029}]`).Split(string(text), -1) // as YAML has it
	if !utf8.Valid(text) {
		l.fail(source{rank: rankFile, name: l.file, line: 1, column: 1}, "", "is not UTF-8", "")
		l.hidden = append(l.hidden, span{line: 0, open: true})
		return
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF): // nothing, or comments only
		return
	case err != nil:
		l.syntaxError(err)
		return
	}
	l.section(doc.Content[0], root, "")
	if err := dec.Decode(&more); err == nil {
		l.fail(l.at(&more), "", "a second document begins", "one document")
	} else if !errors.Is(err, io.EOF) {
		l.syntaxError(err)
	}
}

// syntaxError reports where the file stops being YAML. yaml's own line is that of whatever is being
// read, or the one before; the mistake is in the first line that no shorter file is good without.
func (l *loader) syntaxError(err error) {
	at := source{rank: rankFile, name: l.file, line: len(l.lines)}
	for at.line > 1 && !isYAML(strings.Join(l.lines[:at.line-1], "\n")) {
		at.line--
	}
	line := l.lines[at.line-1]
	at.column = 1 + utf8.RuneCountInString(line) - utf8.RuneCountInString(strings.TrimLeft(line, " \t"))
	for i, line := range l.lines { // what is a secret cannot be told: show keys only
		if j := strings.IndexByte(line, ':'); j >= 0 {
			l.hidden = append(l.hidden, span{line: i + 1, column: 3 + utf8.RuneCountInString(line[:j])})
		}
	}
	message := regexp.MustCompile(`^yaml: (line \d+: )?`).ReplaceAllString(err.Error(), "")
	if strings.HasPrefix(message, "unknown anchor") { // it would show the value
		message = "a value begins with * and is not quoted"
	}
	l.fail(at, "", "is not YAML: "+message, "")
}

func isYAML(text string) bool {
	dec := yaml.NewDecoder(strings.NewReader(text))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

// section reads a mapping into a struct.
func (l *loader) section(n *yaml.Node, v reflect.Value, path string) {
	known := keysOf(v.Type())
	given := map[string]bool{}
	for _, p := range l.pairs(n, path, strings.Join(known, ", ")) {
		key := p.key.Value
		child := join(path, key)
		f, ok := fieldOf(v.Type(), key)
		switch {
		case ok:
			given[key] = true
			l.field(p.value, f, v.FieldByIndex(f.Index), child)
		default:
			l.hideIfSecret(p.value, child)
			l.fail(l.at(p.key), child, "is not a key of "+cmp.Or(path, "the file")+didYouMean(key, known), strings.Join(known, ", "))
		}
	}
	for f := range fields(v.Type()) {
		key := f.Tag.Get("key")
		if mapping := isNull(n) || resolve(n).Kind == yaml.MappingNode; mapping && f.Tag.Get("required") != "" && !given[key] && !given[f.Tag.Get("required")] {
			l.missing = append(l.missing, missing{l.at(n), path, key, f.Tag.Get("required"), f.Tag.Get("allowed")})
		}
	}
}

// missing is a required key that the file does not have. The environment may.
type missing struct {
	at                 source
	path, key, instead string
	allowed            string
}

func (l *loader) checkMissing() {
	for _, m := range l.missing {
		if l.from[join(m.path, m.key)].rank == rankDefault && l.from[join(m.path, m.instead)].rank == rankDefault {
			message := "has no " + m.key
			if m.instead != m.key {
				message += " and no " + m.instead
			}
			l.fail(m.at, m.path, message, m.key+": "+m.allowed)
		}
	}
}

func (l *loader) field(n *yaml.Node, f reflect.StructField, v reflect.Value, path string) {
	switch {
	case isNames(v.Type()):
		l.entries(n, v, path)
	case v.Kind() == reflect.Map:
		l.texts(n, f, v, path)
	case f.Type == reflect.TypeFor[Rates]() && resolve(n).Kind != yaml.SequenceNode:
		l.scalar(n, f, v, path)
	case isSection(v.Type()):
		l.section(n, v, path)
	case v.Kind() == reflect.Slice:
		l.list(n, f, v, path)
	case isListOfHours(n, v):
		l.listOfHours(n, f, v, path)
	default:
		l.scalar(n, f, v, path)
	}
}

// entries reads a mapping of names into a map of structs, each over the defaults.
func (l *loader) entries(n *yaml.Node, v reflect.Value, path string) {
	for _, p := range l.pairs(n, path, "a name for each") {
		if err := checkName(p.key.Value); err != nil {
			l.failBy(l.at(p.key), path, err)
			continue
		}
		entry := reflect.New(v.Type().Elem()).Elem()
		setDefaults(entry)
		l.section(p.value, entry, join(path, p.key.Value))
		v.SetMapIndex(reflect.ValueOf(p.key.Value), entry)
	}
}

// texts reads a mapping of keys, which may be anything, to single values.
func (l *loader) texts(n *yaml.Node, f reflect.StructField, v reflect.Value, path string) {
	l.from[path] = l.at(n)
	v.Set(reflect.MakeMap(v.Type()))
	for _, p := range l.pairs(n, path, f.Tag.Get("allowed")) {
		text, ok := l.text(p.value, f, path)
		if !ok {
			continue
		}
		l.from[join(path, p.key.Value)] = l.at(p.value)
		if err := checkString(f, text); err != nil {
			l.failBy(l.at(p.value), path, err)
			continue
		}
		v.SetMapIndex(reflect.ValueOf(p.key.Value), reflect.ValueOf(text))
	}
}

func (l *loader) list(n *yaml.Node, f reflect.StructField, v reflect.Value, path string) {
	at, n := l.at(n), resolve(n)
	switch {
	case isNull(n):
		return
	case n.Kind != yaml.SequenceNode:
		l.fail(at, path, "must be a list", "[a, b]")
		return
	case len(n.Content) == 0 && f.Type == reflect.TypeFor[Rates]():
		l.fail(at, path, "is an empty list", f.Tag.Get("allowed"))
		return
	}
	defer func() { l.from[path] = at }()
	seen := map[string]bool{}
	for i, item := range n.Content {
		if via := variablesIn(resolve(item).Value); via != "" && !strings.Contains(at.via, via) {
			at.via = strings.TrimPrefix(at.via+", "+via, ", ")
		}
		l.from[itemPath(path, i)] = l.at(item)
		text, ok := l.text(item, f, path)
		if !ok {
			continue
		}
		if err := appendItem(v, f, text, seen); err != nil {
			l.failBy(l.at(item), path, err)
		}
	}
}

func (l *loader) scalar(n *yaml.Node, f reflect.StructField, v reflect.Value, path string) {
	text, ok := l.text(n, f, path)
	if !ok {
		return
	}
	at := l.at(n)
	at.via = variablesIn(resolve(n).Value)
	l.set(at, path, f, v, text)
}

// text is what a scalar says, with ${VAR} expanded.
func (l *loader) text(n *yaml.Node, f reflect.StructField, path string) (string, bool) {
	at, n := l.at(n), resolve(n)
	if f.Tag.Get("secret") != "" || f.Tag.Get("hide") != "" {
		l.hide(n)
	}
	allowed := f.Tag.Get("allowed")
	switch {
	case n.Kind != yaml.ScalarNode:
		l.hideIfSecret(n, path)
		l.fail(at, path, "must be a single value", allowed)
		return "", false
	case isNull(n):
		l.fail(at, path, "has no value", allowed)
		return "", false
	}
	text, err := expand(n.Value, l.env)
	switch {
	case err != nil:
		l.failBy(at, path, err)
	case text == "" && n.Value != "" && !mayBeEmpty(f):
		l.fail(at, path, n.Value+" is not set", allowed)
	default:
		return text, true
	}
	return "", false
}

func mayBeEmpty(f reflect.StructField) bool {
	return f.Type.Kind() == reflect.String && f.Tag.Get("default") == ""
}

// set gives a field its value from one source. Empty text leaves a field that may be empty as it
// is, so that `url: ${DATABASE_URL}` without that variable says nothing.
func (l *loader) set(at source, path string, f reflect.StructField, v reflect.Value, text string) {
	text = strings.TrimSpace(text)
	if text == "" && mayBeEmpty(f) {
		return
	}
	l.from[path] = at // of a bad value too: what is found wrong with it later stands there
	if err := setField(v, f, text); err != nil {
		l.failBy(at, path, err)
	}
}

type pair struct{ key, value *yaml.Node }

// pairs returns the keys of a mapping with their values, each key once. An empty value is an empty
// mapping: `queues:` with its entries commented out.
func (l *loader) pairs(n *yaml.Node, path, allowed string) []pair {
	at, n := l.at(n), resolve(n)
	switch {
	case isNull(n):
		return nil
	case n.Kind != yaml.MappingNode:
		l.hideIfSecret(n, path)
		l.fail(at, path, "must be a mapping of keys to values", allowed)
		return nil
	}
	var pairs []pair
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		p := pair{n.Content[i], n.Content[i+1]}
		key := p.key.Value
		switch first, twice := lines[key]; {
		case p.key.Kind != yaml.ScalarNode:
			l.hide(p.key)
			l.hide(p.value)
			l.fail(l.at(p.key), path, "a key must be plain text", allowed)
		case twice:
			l.hideIfSecret(p.value, join(path, key))
			l.fail(l.at(p.key), join(path, key), fmt.Sprintf("is given twice, first on line %d", first), "")
		default:
			lines[key] = p.key.Line
			pairs = append(pairs, p)
		}
	}
	return pairs
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// expand replaces ${VAR} and ${VAR:-default} (the default holds where VAR is unset or empty).
// $${ stands for ${. A variable that is not set is empty where it is all there is; in the middle of
// a text it is a mistake.
func expand(s string, env map[string]string) (string, error) {
	var b strings.Builder
	for rest := s; ; {
		before, after, ok := strings.Cut(rest, "${")
		if !ok {
			b.WriteString(rest)
			return b.String(), nil
		}
		if strings.HasSuffix(before, "$") {
			b.WriteString(before + "{")
			rest = after
			continue
		}
		b.WriteString(before)
		inner, tail, ok := strings.Cut(after, "}")
		name, fallback, hasFallback := strings.Cut(inner, ":-")
		if !ok || !isVariable(name) || strings.Contains(fallback, "${") {
			return "", fault{"has a ${ that names no variable", "${VAR}, ${VAR:-default}, and $${ for ${ itself"}
		}
		value := env[name]
		switch {
		case value == "" && hasFallback:
			value = fallback
		case value == "" && s != "${"+inner+"}":
			return "", fault{"${" + name + "} is not set", "${" + name + ":-} if it may be empty"}
		}
		b.WriteString(value)
		rest = tail
	}
}

// variablesIn lists the variables that a value names: "${A}, ${B}".
func variablesIn(s string) string {
	var list []string
	named := regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)`)
	for _, found := range named.FindAllStringSubmatch(strings.ReplaceAll(s, "$${", ""), -1) {
		list = append(list, "${"+found[1]+"}")
	}
	return strings.Join(slices.Compact(list), ", ")
}

func isVariable(name string) bool {
	return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name)
}
