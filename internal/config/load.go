package config

import (
	"errors"
	"fmt"
	"io"
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
	Path    string            // the file that -c names; empty: CALLQ_CONFIG, ./config.yaml, /etc/callq/config.yaml
	Flags   map[string]string // what flags set, by path: "postgres.url" is --postgres-url
	Environ []string          // as os.Environ()
}

// Load reads and checks the configuration. A file must exist only if it was named. The error is an
// *Error with everything that is wrong.
func Load(s Source) (*Config, error) {
	env := map[string]string{}
	for _, e := range s.Environ {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	names := []string{s.Path, env["CALLQ_CONFIG"], "config.yaml", "/etc/callq/config.yaml"}
	for i, name := range names {
		if name == "" {
			continue
		}
		text, err := readFile(name)
		if err == nil {
			return load(name, text, env, s.Flags)
		}
		if named := i < 2; named || !errors.Is(err, fs.ErrNotExist) {
			return nil, &Error{Problems: []Problem{{source: source{Source: name}, Message: "cannot be read: " + reason(err)}}}
		}
	}
	return load("", nil, env, s.Flags)
}

// Default returns the configuration that holds where nothing is configured.
func Default() *Config {
	c, err := load("", nil, nil, nil)
	if err != nil {
		panic("config: a default breaks its own rule: " + err.Error()) // every test would meet it
	}
	return c
}

// maxSize bounds what callq reads of a file. A larger one would keep it busy for long.
const maxSize = 1 << 20

func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if len(text) > maxSize {
		return nil, fmt.Errorf("it is larger than %d bytes, and no configuration is", maxSize)
	}
	return text, err
}

// readSecret reads a file that holds nothing but a secret.
func readSecret(name string) (string, error) {
	raw, err := readFile(name)
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
	config    *Config
	file      *file
	flags     map[string]string
	variables map[string]string // the path of each environment variable
	problems  []Problem
}

func load(name string, text []byte, env, flags map[string]string) (*Config, error) {
	c := &Config{File: name, origin: origins{env: env, byPath: map[string]*setting{}}}
	l := &loader{config: c, file: newFile(name, text), flags: flags, variables: map[string]string{}}
	l.section(reflect.ValueOf(c).Elem(), l.parse(text), "")
	c.origin.warnings = slips(env, l.variables)
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
	at := source{Source: name, rank: rankEnv}
	if other, twice := l.variables[name]; twice && o.env[name] != "" {
		l.fail(at, s.path, "could be "+other+" or "+s.path, "names that differ in letters or digits")
	} else if o.env[name] != "" {
		l.setText(s, at, o.env[name])
	}
	l.variables[name] = s.path
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
		s.via = file.value.String()
	case file.from.rank > rankDefault && file.from.rank == s.from.rank:
		l.fail(file.from, file.path, "is given beside "+s.path, "one of them")
	case s.from.rank > rankDefault || common == "":
	case env[common] != "":
		l.setText(s, source{Source: common, rank: rankEnv}, env[common])
	case s.tag("check") == "postgres" && namesServer(env):
		s.from = source{Source: "libpq's PG*", rank: rankEnv}
	}
}

// namesServer tells whether one of libpq's variables says which Postgres to use.
func namesServer(env map[string]string) bool {
	names := []string{"PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD", "PGSERVICE"}
	return slices.ContainsFunc(names, func(name string) bool { return env[name] != "" })
}

// variable is the environment's name of a path: CALLQ_HTTP_LISTEN of http.listen.
func variable(path string) string {
	return "CALLQ_" + regexp.MustCompile(`[^A-Z0-9]`).ReplaceAllString(strings.ToUpper(path), "_")
}

// slips are variables that look like a setting's. They need not be mistakes: other programs make such
// names too (CALLQ_REDIS_PORT is a Kubernetes service's).
func slips(env, variables map[string]string) (found []string) {
	known := slices.Sorted(maps.Keys(variables))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !strings.HasPrefix(name, "CALLQ_") || name == "CALLQ_CONFIG" || env[name] == "" || variables[name] != "" {
			continue
		}
		if near := didYouMean(name, known); near != "" {
			found = append(found, name+" is not a setting"+near)
		} else if matches(`^CALLQ_(LIMITS|QUEUES|BUDGETS)_`, name) {
			found = append(found, name+" is of a limit, queue or budget that the file does not have")
		}
	}
	return found
}

// didYouMean names the known word whose letters are nearly those of a mistyped one.
func didYouMean(word string, known []string) string {
	best, least := "", min(2, len(word)/3)+1
	for _, k := range known {
		counts, differ := map[rune]int{}, 0
		for _, r := range strings.ToLower(word) {
			counts[r]++
		}
		for _, r := range strings.ToLower(k) {
			counts[r]--
		}
		for _, n := range counts {
			differ += max(n, -n)
		}
		if differ < least {
			best, least = " (did you mean "+k+"?)", differ
		}
	}
	return best
}
