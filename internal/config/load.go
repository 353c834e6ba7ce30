package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Source is what Load reads from.
type Source struct {
	Path  string            // the file that -c names; empty: CALLQ_CONFIG, ./config.yaml, /etc/callq/config.yaml
	Flags map[string]string // what flags set, by path: "postgres.url" is --postgres-url
	Env   map[string]string // the environment
}

// maxSize bounds the file: somebody named another one.
const maxSize = 1 << 20

// Load reads and checks the configuration. A file must exist only if it was named. The error is an
// *Error with everything that is wrong.
func Load(s Source) (*Config, error) {
	names := []string{s.Path, s.Env["CALLQ_CONFIG"], "config.yaml", "/etc/callq/config.yaml"}
	for i, name := range names {
		if name == "" {
			continue
		}
		text, err := os.ReadFile(name)
		if len(text) > maxSize {
			err = fmt.Errorf("it has %d bytes, more than %d", len(text), maxSize)
		}
		if err == nil {
			return load(name, text, s.Env, s.Flags)
		}
		if named := i < 2; named || !errors.Is(err, fs.ErrNotExist) {
			return nil, &Error{Problems: []Problem{{source: source{Source: name}, Message: "cannot be read: " + reason(err)}}}
		}
	}
	return load("", nil, s.Env, s.Flags)
}

// Default returns the configuration that holds where nothing is configured.
func Default() *Config {
	c, err := load("", nil, nil, nil)
	if err != nil {
		panic("config: a default breaks its own rule: " + err.Error()) // every test would meet it
	}
	return c
}

// readSecret reads a file that holds nothing but a secret.
func readSecret(name string) (string, error) {
	raw, err := os.ReadFile(name)
	text := strings.TrimSpace(string(raw))
	if err == nil && text == "" {
		err = errors.New("it is empty")
	}
	return text, err
}

// reason is a file error without the path, which is printed beside it.
func reason(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

// loader fills a Config from its sources and collects what is wrong with them.
type loader struct {
	config   *Config
	flags    map[string]string
	problems []Problem
}

func load(name string, text []byte, env, flags map[string]string) (*Config, error) {
	c := &Config{File: name, origin: origins{env: env, byPath: map[string]*setting{}, read: map[string]bool{"CALLQ_CONFIG": true}}}
	l := &loader{config: c, flags: flags}
	l.section(reflect.ValueOf(c).Elem(), l.parse(text), "")
	if len(l.problems) > 0 {
		return nil, l.err()
	}
	return c, nil
}

// setting gives a setting its value: the default, or what the file, the environment or a flag say
// instead. An empty variable counts as none.
func (l *loader) setting(s *setting, n *yaml.Node) *setting {
	o := &l.config.origin
	o.settings, o.byPath[s.path] = append(o.settings, s), s
	if text := s.tag("default"); text != "" {
		l.setText(s, source{}, text)
	}
	if n != nil {
		l.setNode(s, n)
	}
	name := variable(s.path)
	if o.read[name] = true; o.env[name] != "" {
		l.setText(s, source{Source: name, rank: rankEnv}, o.env[name])
	}
	if text, ok := l.flags[s.path]; ok {
		l.setText(s, source{Source: "--" + strings.NewReplacer(".", "-", "_", "-").Replace(s.path), rank: rankFlag}, text)
	}
	return s
}

// secret reads KEY_file into KEY, unless KEY comes from a stronger source. Where neither is given, a
// variable of other programs may be: DATABASE_URL, REDIS_URL or libpq's.
func (l *loader) secret(s, file *setting) {
	env, common := l.config.origin.env, s.tag("env")
	switch {
	case file.from.rank > s.from.rank:
		text, err := readSecret(file.value.String())
		if err != nil {
			l.fail(file.from, file.path, "cannot be read: "+reason(err), "a file that holds the value")
			return
		}
		l.setText(s, file.from, text)
	case file.from.rank > rankDefault && file.from.rank == s.from.rank:
		l.fail(file.from, file.path, "is given beside "+s.path, "one of them")
	case s.from.rank > rankDefault || common == "":
	case env[common] != "":
		l.setText(s, source{Source: common, rank: rankEnv}, env[common])
	case s.tag("check") == "postgres" && namesServer(env):
		s.from = source{Source: "libpq's PG*", rank: rankEnv}
	}
}

// namesServer reports whether one of libpq's variables names the Postgres to use.
func namesServer(env map[string]string) bool {
	names := []string{"PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD", "PGSERVICE"}
	return slices.ContainsFunc(names, func(name string) bool { return env[name] != "" })
}

// variable is the environment's name of a path: CALLQ_HTTP_LISTEN of http.listen.
func variable(path string) string {
	return "CALLQ_" + regexp.MustCompile(`[^A-Z0-9]`).ReplaceAllString(strings.ToUpper(path), "_")
}

// setting is one value of a Config, what its tags say of it, and where it came from.
type setting struct {
	path  string
	tags  reflect.StructTag
	value reflect.Value // in the Config
	from  source
	items []item // that it was read from: one, or those of a list or mapping
}

type item struct {
	key, text string
	from      source
}

func (s *setting) tag(name string) string { return s.tags.Get(name) }

func (s *setting) allowed() string { return cmp.Or(s.tag("allowed"), ruleOf(s.tag("check")).allowed) }

// mayBeEmpty tells whether empty text leaves the setting unset, so that `url: ${DATABASE_URL}`
// without that variable names none.
func (s *setting) mayBeEmpty() bool {
	return s.tag("default") == "" && s.value.Kind() == reflect.String
}

// section fills a struct from a mapping, which may be nil, and lets it check itself.
func (l *loader) section(v reflect.Value, n *yaml.Node, path string) {
	known := keysOf(v.Type())
	given, ok := l.mapping(n, path, strings.Join(known, ", "), func(key string) error {
		if slices.Contains(known, key) {
			return nil
		}
		return errors.New("is not a key of " + cmp.Or(path, "the file"))
	})
	for f, value := range v.Fields() {
		key := f.Tag.Get("key")
		node, child := given[key], join(path, key)
		switch {
		case key == "":
		case value.Kind() == reflect.Map && value.Type().Elem().Kind() == reflect.Struct:
			l.entries(value, node, child, f.Tag.Get("always"))
		case value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct:
			l.list(value, node, child)
		case value.Kind() == reflect.Struct && len(keysOf(value.Type())) > 0:
			l.section(value, node, child)
		default:
			s := l.setting(&setting{path: child, tags: f.Tag, value: value}, node)
			if s.tag("secret") != "" {
				text := reflect.New(reflect.TypeFor[string]()).Elem()
				l.secret(s, l.setting(&setting{path: child + "_file", value: text}, given[key+"_file"]))
			}
		}
	}
	if c, is := v.Addr().Interface().(interface{ check(section) }); is && ok {
		c.check(section{l, path, l.at(n)})
	}
}

// entries fills a map of sections, such as limits, by name.
func (l *loader) entries(v reflect.Value, n *yaml.Node, path, always string) {
	given, _ := l.mapping(n, path, ruleOf("name").allowed, checkName)
	if always != "" && given[always] == nil {
		given[always] = nil
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, name := range slices.Sorted(maps.Keys(given)) {
		entry := reflect.New(v.Type().Elem()).Elem()
		l.section(entry, given[name], join(path, name))
		v.SetMapIndex(reflect.ValueOf(name), entry)
	}
}

// list fills a list of sections.
func (l *loader) list(v reflect.Value, n *yaml.Node, path string) {
	switch {
	case n == nil || isNull(n):
		return
	case n.Kind != yaml.SequenceNode:
		l.fail(l.at(n), path, "must be a list", "- {…} for each")
		return
	}
	for i, child := range n.Content {
		entry := reflect.New(v.Type().Elem()).Elem()
		l.section(entry, child, fmt.Sprintf("%s[%d]", path, i))
		v.Set(reflect.Append(v, entry))
	}
}

// mapping returns what a mapping gives its keys. No value is an empty mapping: `queues:` with its
// entries commented out.
func (l *loader) mapping(n *yaml.Node, path, allowed string, check func(key string) error) (map[string]*yaml.Node, bool) {
	given := map[string]*yaml.Node{}
	if n == nil || isNull(n) {
		return given, true
	}
	if n.Kind != yaml.MappingNode {
		l.fail(l.at(n), path, "must be a mapping of keys to values", allowed)
		return given, false
	}
	for pair := range slices.Chunk(n.Content, 2) {
		key, value := pair[0], pair[1]
		err := check(key.Value)
		if first, twice := given[key.Value]; twice {
			err = fmt.Errorf("is given twice, first on line %d", first.Line)
		}
		if key.Kind != yaml.ScalarNode {
			err = errors.New("a key must be plain text")
		}
		if err != nil {
			l.fail(l.at(key), join(path, key.Value), err.Error(), allowed)
			continue
		}
		given[key.Value] = value
	}
	return given, true
}

func keysOf(t reflect.Type) (keys []string) {
	for f := range t.Fields() {
		if key := f.Tag.Get("key"); key != "" {
			keys = append(keys, key)
		}
		if f.Tag.Get("secret") != "" {
			keys = append(keys, f.Tag.Get("key")+"_file")
		}
	}
	return keys
}

func join(path, key string) string {
	if path == "" || key == "" {
		return path + key
	}
	return path + "." + key
}

// setText gives a setting what is written outside of the file: a list as a,b and a mapping as a=1,b=2.
func (l *loader) setText(s *setting, from source, text string) {
	items := []item{{"", text, from}}
	if kind := s.value.Kind(); kind == reflect.Map || kind == reflect.Slice {
		items = nil
		for part := range strings.SplitSeq(strings.ReplaceAll(text, ", sliding window", ""), ",") {
			key, value, _ := strings.Cut(part, "=")
			if kind == reflect.Slice {
				key, value = "", part
			}
			items = append(items, item{strings.TrimSpace(key), value, from})
		}
	}
	l.assign(s, from, items)
}

// setNode gives a setting what the file has: a value, a list or a mapping. A list of one may be written as its item.
func (l *loader) setNode(s *setting, n *yaml.Node) {
	at, items := l.at(n), []item{}
	switch kind := s.value.Kind(); {
	case kind == reflect.Map:
		given, _ := l.mapping(n, s.path, s.allowed(), func(string) error { return nil })
		for _, key := range slices.Sorted(maps.Keys(given)) {
			values := []*yaml.Node{given[key]}
			if s.value.Type().Elem().Kind() == reflect.Slice && given[key].Kind == yaml.SequenceNode {
				values = given[key].Content
			}
			for _, value := range values {
				items = append(items, l.item(s, value, key)...)
			}
		}
	case kind == reflect.Slice && n.Kind == yaml.SequenceNode:
		for _, child := range n.Content {
			items = append(items, l.item(s, child, "")...)
		}
	case kind == reflect.Slice && isNull(n):
		return
	default:
		if items = l.item(s, n, ""); len(items) > 0 {
			at = items[0].from
		}
	}
	l.assign(s, at, items)
}

// item reads a scalar, with ${VAR} expanded. It returns none where that is a mistake.
func (l *loader) item(s *setting, n *yaml.Node, key string) []item {
	at := l.at(n)
	if n.Kind == yaml.ScalarNode && s.tag("secret") == "" && s.tag("hide") == "" {
		at.text = Quote(n.Value)
	}
	text, err := expand(n.Value, func(name string) string {
		l.config.origin.read[name] = true
		return l.config.origin.env[name]
	})
	switch {
	case n.Kind != yaml.ScalarNode:
		err = errors.New("must be a single value")
	case isNull(n):
		err = errors.New("has no value")
	case err == nil && text == "" && n.Value != "" && !s.mayBeEmpty():
		err = errors.New(n.Value + " is not set")
	}
	if err != nil {
		l.fail(at, s.path, err.Error(), s.allowed())
		return nil
	}
	return []item{{key, text, at}}
}

// expand replaces ${VAR} and ${VAR:-default}, whose default holds where VAR is unset or empty; $${
// stands for ${. A variable that is not set is empty where it is the whole value, else a mistake.
func expand(s string, env func(name string) string) (text string, err error) {
	reference := regexp.MustCompile(`\$\$\{|\$\{(?:([A-Za-z_]\w*)(:-[^}]*)?\})?`)
	text = reference.ReplaceAllStringFunc(s, func(match string) string {
		parts := reference.FindStringSubmatch(match)
		name, fallback := parts[1], parts[2]
		value := env(name)
		switch {
		case match == "$${":
			return "${"
		case name == "" || strings.Contains(fallback, "${"):
			err = errors.New("has a ${ that names no variable: write ${VAR} or ${VAR:-default}, and $${ for ${ itself")
		case value == "" && fallback != "":
			value = strings.TrimPrefix(fallback, ":-")
		case value == "" && match != s:
			err = fmt.Errorf("${%s} is not set: write ${%s:-} if it may be empty", name, name)
		}
		return value
	})
	return text, err
}

// assign gives a setting the items of one source. It reports bad ones, and leaves them out.
func (l *loader) assign(s *setting, from source, items []item) {
	if len(items) == 1 && strings.TrimSpace(items[0].text) == "" && s.mayBeEmpty() {
		return
	}
	s.from, s.items = from, items
	kind := s.value.Kind()
	if kind == reflect.Slice || kind == reflect.Map {
		s.value.SetZero()
	}
	if kind == reflect.Map && len(items) > 0 {
		s.value.Set(reflect.MakeMap(s.value.Type()))
	}
	for i, it := range items {
		items[i].text = strings.TrimSpace(it.text)
		value, err := s.parse(items[i].text)
		switch {
		case err != nil:
			l.fail(it.from, s.path, err.Error(), s.allowed())
		case kind == reflect.Slice:
			s.value.Set(reflect.Append(s.value, value))
		case kind == reflect.Map && s.value.Type().Elem().Kind() == reflect.Slice:
			had := s.value.MapIndex(reflect.ValueOf(it.key))
			if !had.IsValid() {
				had = reflect.Zero(s.value.Type().Elem())
			}
			s.value.SetMapIndex(reflect.ValueOf(it.key), reflect.Append(had, value))
		case kind == reflect.Map:
			s.value.SetMapIndex(reflect.ValueOf(it.key), value)
		default:
			s.value.Set(value.Convert(s.value.Type()))
		}
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
