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

// maxSize bounds what callq reads of a file. A larger one could take all memory of a process that reloads.
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
	flags     map[string]string
	variables map[string]string // the path of each environment variable
	problems  []Problem
}

func load(name string, text []byte, env, flags map[string]string) (*Config, error) {
	c := &Config{File: name, origin: origins{env: env, byPath: map[string]*setting{}}}
	l := &loader{config: c, flags: flags, variables: map[string]string{}}
	l.section(reflect.ValueOf(c).Elem(), l.parse(text), "")
	c.origin.warnings = strays(env, l.variables)
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

// strays are variables named as a section's, though no setting is. They need not be mistakes: another program may read them.
func strays(env, variables map[string]string) (found []string) {
	sections := strings.ToUpper(strings.Join(keysOf(reflect.TypeFor[Config]()), "|"))
	others := `_(SERVICE_HOST|(SERVICE_)?PORT)(_|$)|_BIN$` // of Kubernetes, and of internal/local
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if env[name] != "" && variables[name] == "" && matches("^CALLQ_("+sections+")_", name) && !matches(others, name) {
			found = append(found, name+" is not a setting, or of a limit, queue or budget that the file does not have")
		}
	}
	return found
}
