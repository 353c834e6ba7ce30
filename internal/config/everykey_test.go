package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// What holds for every key alike, those that are still to come too.

// otherValue is a good value of a field, and not its default where there is a choice.
func otherValue(t *testing.T, path string, f reflect.StructField) string {
	t.Helper()
	candidates := append(strings.Split(f.Tag.Get("allowed"), "|"),
		"postgres://other/d", "redis://other", "7/1m", "17", "35s", "20ms..40s", "7d", "2KiB", "true", "0 5 * * *", "22:00-06:00", ":17", "x17")
	for _, text := range candidates {
		v := reflect.New(f.Type).Elem()
		if text != "" && text != f.Tag.Get("default") && setField(v, f, text) == nil {
			return text
		}
	}
	if only := f.Tag.Get("default"); only != "" && only == f.Tag.Get("allowed") {
		return only
	}
	t.Fatalf("%s: no good value among %q", path, candidates)
	return ""
}

// everyKey has a limit of each kind, a queue and a budget, so that every key there is has a path.
const everyKey = "limits: {per-min: {rate: 1/m}, at-once: {concurrency: 1}}\nqueues: {q-1: {}}\nbudgets: {b-1: {rate: 1/m}}\n"

func forEveryKey(t *testing.T, run func(t *testing.T, path, other string, f reflect.StructField)) {
	t.Helper()
	seen := 0
	leaves(reflect.ValueOf(*mustLoad(t, everyKey, nil, nil)), "", func(path string, f reflect.StructField, _ reflect.Value) {
		switch {
		case regexp.MustCompile(`^limits\.[a-z-]+\.(burst|timezone|overrides)$`).MatchString(path):
			return // of certain limits only: TestWindows
		case path == "limits.per-min.concurrency", strings.HasPrefix(path, "limits.at-once.") && path != "limits.at-once.concurrency":
			return // of the other kind of limit
		case strings.HasSuffix(path, "_file"):
			return // TestSecretsHaveFiles
		}
		seen++
		other := otherValue(t, path, f)
		if strings.HasPrefix(path, "queues.") && strings.HasSuffix(path, ".limits") {
			other = "per-min"
		}
		t.Run(path, func(t *testing.T) { t.Parallel(); run(t, path, other, f) })
	})
	if seen < 30 {
		t.Errorf("only %d keys", seen)
	}
}

func holds(t *testing.T, c *Config, path, other, source string, f reflect.StructField) {
	t.Helper()
	want := reflect.New(f.Type).Elem()
	if err := setField(want, f, other); err != nil {
		t.Fatal(err)
	}
	if got := c.values()[path]; !reflect.DeepEqual(got, want.Interface()) || !strings.HasPrefix(c.Origin(path), source) {
		t.Errorf("%s = %v from %s, want %s from %s", path, got, c.Origin(path), other, source)
	}
}

// Each key has a variable of the environment, which holds over the file.
func TestEveryKeyHasItsVariable(t *testing.T) {
	t.Parallel()
	forEveryKey(t, func(t *testing.T, path, other string, f reflect.StructField) {
		name := variable(path)
		holds(t, mustLoad(t, everyKey, map[string]string{name: other}, nil), path, other, name, f)
		if f.Tag.Get("check") == "password" {
			return // it may be anything
		}
		_, err := load("config.yaml", []byte(everyKey), map[string]string{name: "\x00 bad,,"}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("nonsense in %s: %v", name, err)
		}
	})
}

// ${VAR} and ${VAR:-default} stand for the value of any key, and of an item of any list.
func TestEveryKeyTakesVariables(t *testing.T) {
	t.Parallel()
	forEveryKey(t, func(t *testing.T, path, other string, f reflect.StructField) {
		for text, env := range map[string]map[string]string{"${V}": {"V": other}, "${V:-" + other + "}": nil} {
			value := fmt.Sprintf("%q", text)
			if f.Type.Kind() == reflect.Slice {
				value = "[" + value + "]"
			}
			holds(t, mustLoad(t, inFile(path, value), env, nil), path, other, "config.yaml:", f)
		}
	})
}

// inFile is everyKey with one more key.
func inFile(path, value string) string {
	nested := value
	keys := strings.Split(path, ".")
	for i := len(keys) - 1; i >= 0; i-- {
		nested = "{" + keys[i] + ": " + nested + "}"
	}
	switch {
	case keys[0] == "queues":
		return "limits: {per-min: {rate: 1/m}}\nqueues: {" + keys[1] + ": {" + keys[2] + ": " + value + "}}\n"
	case path == "budgets.b-1.rate":
		return "budgets: {b-1: {rate: " + value + "}}\n"
	case keys[0] == "budgets":
		return "budgets: {b-1: {rate: 1/m, " + keys[2] + ": " + value + "}}\n"
	case path == "limits.per-min.rate":
		return "limits: {per-min: {rate: " + value + "}}\n"
	case strings.HasPrefix(path, "limits.per-min."):
		return "limits: {per-min: {rate: 1/m, " + keys[2] + ": " + value + "}}\n"
	}
	return nested
}

// Each secret may stand in a file of its own, which the file or the environment names; one that cannot be
// read, or holds nothing, is a mistake.
func TestSecretsHaveFiles(t *testing.T) {
	t.Parallel()
	seen := 0
	leaves(reflect.ValueOf(*mustLoad(t, everyKey, nil, nil)), "", func(path string, f reflect.StructField, _ reflect.Value) {
		if f.Tag.Get("secret") == "" {
			return
		}
		seen++
		other := otherValue(t, path, f)
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write := func(name, text string) string {
				file := filepath.Join(dir, name)
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				return file
			}
			good, empty := write("good", other+"\n"), write("empty", " \n")
			holds(t, mustLoad(t, inFile(path+"_file", good), nil, nil), path, other, "config.yaml:", f)
			name := variable(path + "_file")
			holds(t, mustLoad(t, inFile(path, otherValue(t, path, f)), map[string]string{name: good}, nil), path, other, name, f)
			for file, words := range map[string]string{empty: "holds nothing", filepath.Join(dir, "none"): "cannot be read"} {
				_, err := load("config.yaml", []byte(inFile(path+"_file", file)), nil, nil)
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("%s_file: %s: error %v, want %q", path, file, err, words)
				}
			}
		})
	})
	if seen < 3 {
		t.Errorf("only %d secrets", seen)
	}
}
