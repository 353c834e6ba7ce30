package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// Source is what Load reads from.
type Source struct {
	Path    string            // the file named by -c; empty: CALLQ_CONFIG, ./config.yaml, /etc/callq/config.yaml
	Flags   map[string]string // what was set by flags, by path: "postgres.url" is --postgres-url
	Environ []string          // as os.Environ()
	Dir     string            // what ./config.yaml is relative to; empty: the working directory
}

// Load reads and checks the configuration. A file need not exist unless it was named. The error is
// an *Error with everything that is wrong.
func Load(s Source) (*Config, error) {
	env := map[string]string{}
	for _, e := range s.Environ {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	name, text, err := readFile(s, env)
	if err != nil {
		return nil, &Error{Problems: []Problem{{Source: name, Message: "cannot be read: " + reason(err)}}}
	}
	return load(name, text, env, s.Flags)
}

// Default returns what holds where nothing is configured.
func Default() *Config {
	c, err := load("", nil, nil, nil)
	if err != nil {
		panic("config: a default breaks its own rule: " + err.Error()) // a test loads them
	}
	return c
}

// readFile finds the file and reads it. Without a name none was found, and none was asked for.
func readFile(s Source, env map[string]string) (name string, text []byte, err error) {
	for _, name := range []string{s.Path, env["CALLQ_CONFIG"]} {
		if name != "" {
			text, err = readBounded(name)
			return name, text, err
		}
	}
	for _, name := range []string{filepath.Join(s.Dir, "config.yaml"), "/etc/callq/config.yaml"} {
		if text, err = readBounded(name); !errors.Is(err, fs.ErrNotExist) {
			return name, text, err
		}
	}
	return "", nil, nil
}

// largest is what is read of a file: more is not a configuration, and would keep callq busy for long.
const largest = 1 << 20

func readBounded(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, largest+1))
	if err == nil && len(text) > largest {
		return nil, fmt.Errorf("it is larger than %d bytes, and no configuration is", largest)
	}
	return text, err
}

// reason is a file error without the path, which is said beside it.
func reason(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return err.Error()
}

// loader gathers a Config from its sources, and everything that is wrong with them.
type loader struct {
	file     string
	lines    []string // of the file
	env      map[string]string
	hidden   []span            // what of the file must not be shown
	from     map[string]source // by path; absent: the default
	missing  []missing
	problems []Problem
}

func load(file string, text []byte, env, flags map[string]string) (*Config, error) {
	l := &loader{file: file, env: env, from: map[string]source{}}
	c := &Config{File: file, from: l.from, env: env}
	root := reflect.ValueOf(c).Elem()
	setDefaults(root)
	l.readYAML(text, root)
	if _, ok := c.Queues["default"]; !ok {
		var q Queue
		setDefaults(reflect.ValueOf(&q).Elem())
		c.Queues["default"] = q
	}
	names := l.overlay(root, flags)
	l.resolveSecrets(root)
	l.checkMissing()
	l.checkQueues(c)
	if n := len(c.Worker.Labels); n > mostLabels {
		l.fail(l.from["worker.labels"], "worker.labels", fmt.Sprintf("has %d labels", n), fmt.Sprintf("%d at most", mostLabels))
	}
	l.checkSecrets(c)
	l.checkBudgets(c)
	for name, lim := range c.Limits {
		l.resolveLimit("limits."+name, &lim)
		c.Limits[name] = lim
	}
	c.libpq = slices.ContainsFunc([]string{"PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD", "PGSERVICE"},
		func(name string) bool { return env[name] != "" })
	if c.libpq && l.from["postgres.url"].rank == rankDefault {
		l.from["postgres.url"] = source{rank: rankEnv, name: "libpq's PG*"}
	}
	c.warnings = slipsIn(env, names)
	if len(l.problems) > 0 {
		return nil, l.err()
	}
	return c, nil
}

// overlay sets what the environment and the flags say over what the file said. An empty variable
// counts as none. It returns the path of each variable.
func (l *loader) overlay(root reflect.Value, flags map[string]string) map[string]string {
	names := map[string]string{}
	used := map[string]bool{}
	leaves(root, "", func(path string, f reflect.StructField, v reflect.Value) {
		name := variable(path)
		if text := l.env[name]; text != "" {
			at := source{rank: rankEnv, name: name}
			if other, twice := names[name]; twice {
				l.fail(at, path, "could be "+other+" or "+path, "names that differ in letters or digits")
			} else {
				l.set(at, path, f, v, text)
			}
		}
		names[name] = path
		if text, ok := flags[path]; ok {
			used[path] = true
			l.set(source{rank: rankFlag, name: flagName(path)}, path, f, v, text)
		}
	})
	for path := range flags {
		if !used[path] {
			l.fail(source{rank: rankFlag, name: flagName(path)}, path, "is not a setting", "")
		}
	}
	return names
}

// resolveSecrets reads each KEY_file into its KEY, unless KEY comes from a stronger source. Where
// neither is given, a name that other programs know too may: DATABASE_URL or REDIS_URL.
func (l *loader) resolveSecrets(root reflect.Value) {
	files := map[string]string{}
	leaves(root, "", func(path string, _ reflect.StructField, v reflect.Value) {
		if strings.HasSuffix(path, "_file") {
			files[path] = v.String()
		}
	})
	leaves(root, "", func(path string, f reflect.StructField, v reflect.Value) {
		if f.Tag.Get("secret") == "" {
			return
		}
		own, file := l.from[path], l.from[path+"_file"]
		switch common := f.Tag.Get("env"); {
		case file.rank > own.rank:
			text, err := os.ReadFile(files[path+"_file"])
			if err != nil {
				l.fail(file, path+"_file", "cannot be read: "+reason(err), "a file that holds the URL")
				return
			}
			if strings.TrimSpace(string(text)) == "" {
				l.fail(file, path+"_file", "names a file that holds nothing", "a file that holds the URL")
				return
			}
			file.via = files[path+"_file"]
			l.set(file, path, f, v, string(text))
		case file.rank > rankDefault && file.rank == own.rank:
			l.fail(file, path+"_file", "is given beside "+path, "one of them")
		case own.rank == rankDefault && common != "" && l.env[common] != "":
			l.set(source{rank: rankEnv, name: common}, path, f, v, l.env[common])
		}
	})
}

// mostLabels is how many a worker may carry, as tasks.New and the table have it.
const mostLabels = 64

// checkQueues checks what no value shows by itself: that the limits of the queues exist.
func (l *loader) checkQueues(c *Config) {
	known := slices.Sorted(maps.Keys(c.Limits))
	for name, q := range c.Queues {
		path := "queues." + name + ".limits"
		for i, lim := range q.Limits {
			if _, ok := c.Limits[lim]; !ok {
				l.fail(l.itemSource(path, i), path, Quote(lim)+" is not a limit"+didYouMean(lim, known), cmp.Or(strings.Join(known, ", "), "none: the file has no limits"))
			}
		}
	}
}
