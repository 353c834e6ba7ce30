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

// otherValue is a good value of a setting, and not its default where there is a choice.
func otherValue(t *testing.T, s *setting) string {
	t.Helper()
	if strings.HasSuffix(s.path, ".limits") {
		return "per-min"
	}
	candidates := append(strings.Split(s.allowed(), "|"),
		"postgres://other/d", "redis://other", "7/1m", "17", "35s", "20ms..40s", "7d", "2KiB", "true", "0 5 * * *", "22:00-06:00", "localhost:17", "10.1.0.0/16", "x17")
	for _, text := range candidates {
		if _, err := s.parse(text); text != "" && text != s.tag("default") && err == nil {
			return text
		}
	}
	t.Fatalf("%s: no good value among %q", s.path, candidates)
	return ""
}

// everyKey has a limit of each kind, a queue and a budget, so that every key there is has a path.
const everyKey = "limits: {per-min: {rate: 1/m}, at-once: {concurrency: 1}}\nqueues: {q-1: {}}\nbudgets: {b-1: {rate: 1/m}}\n"

// inFile is everyKey with one more key.
func inFile(path, value string) string {
	keys := strings.Split(path, ".")
	rate := "rate: 1/m, "
	if keys[len(keys)-1] == "rate" || keys[0] == "http" {
		rate = ""
	}
	switch {
	case len(keys) == 4: // limits.per-min.headers.wait
		return keys[0] + ": {" + keys[1] + ": {" + rate + keys[2] + ": {" + keys[3] + ": " + value + "}}}\n"
	case keys[0] == "queues":
		return "limits: {per-min: {rate: 1/m}}\nqueues: {" + keys[1] + ": {" + keys[2] + ": " + value + "}}\n"
	case keys[1] == "at-once":
		return "limits: {at-once: {concurrency: " + value + "}}\n"
	case strings.HasPrefix(path, "redis.tls."), path == "http.auth.users":
		return keys[0] + ": {" + keys[1] + ": {" + keys[2] + ": " + value + "}}\n"
	case keys[0] == "budgets" || keys[0] == "limits":
		return keys[0] + ": {" + keys[1] + ": {" + rate + keys[2] + ": " + value + "}}\n"
	}
	return keys[0] + ": {" + keys[1] + ": " + value + "}\n"
}

// holds checks that a setting has the value that text stands for, from a source.
func holds(t *testing.T, c *Config, path, text, source string) {
	t.Helper()
	got := c.origin.byPath[path]
	want, err := got.parse(text)
	isList := got.value.Kind() == reflect.Slice && got.value.Len() == 1
	if err != nil || !isList && !got.value.Equal(want.Convert(got.value.Type())) || !strings.HasPrefix(c.Origin(path), source) {
		t.Errorf("%s = %v from %s, want %q from %s", path, got.value, c.Origin(path), text, source)
	}
}

// What holds for every key alike: it has a variable of the environment, which holds over the file, and
// ${VAR} and ${VAR:-default} stand for its value, or for an item of its list.
func TestEveryKey(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, s := range mustLoad(t, everyKey, nil, nil).origin.settings {
		path := s.path
		switch {
		case regexp.MustCompile(`^limits\.[a-z-]+\.(burst|timezone|tolerance|overrides|shares)$`).MatchString(path):
			continue // of certain limits only: TestWindows, TestShares
		case regexp.MustCompile(`^budgets\.[a-z0-9-]+\.(timezone|overrides)$|\.needs$`).MatchString(path):
			continue // of certain budgets only: TestBudgets
		case path == "http.auth.proxy.roles":
			continue // TestAuth
		case path == "limits.per-min.concurrency", strings.HasPrefix(path, "limits.at-once.") && path != "limits.at-once.concurrency":
			continue // of the other kind of limit
		case strings.HasSuffix(path, "_file"):
			continue // TestSecretsHaveFiles
		}
		seen++
		other := otherValue(t, s)
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			name := variable(path)
			holds(t, mustLoad(t, everyKey, map[string]string{name: other}, nil), path, other, name)
			if s.tag("check") != "any" {
				_, err := load("config.yaml", []byte(everyKey), map[string]string{name: "\x00 bad,,"}, nil)
				if err == nil || !strings.HasPrefix(err.Error(), name+": ") {
					t.Errorf("nonsense in %s: %v", name, err)
				}
			}
			for text, env := range map[string]map[string]string{"${V}": {"V": other}, "${V:-" + other + "}": nil} {
				value := fmt.Sprintf("%q", text)
				if s.value.Kind() == reflect.Slice {
					value = "[" + value + "]"
				}
				holds(t, mustLoad(t, inFile(path, value), env, nil), path, other, "config.yaml:")
			}
		})
	}
	if seen < 30 {
		t.Errorf("only %d keys", seen)
	}
}

// Each secret may stand in a file of its own, which the file or the environment names; one that cannot be
// read, or holds nothing, is a mistake.
func TestSecretsHaveFiles(t *testing.T) {
	t.Parallel()
	dir, seen := t.TempDir(), 0
	for _, s := range mustLoad(t, everyKey, nil, nil).origin.settings {
		if s.tag("secret") == "" {
			continue
		}
		seen++
		path, other := s.path, otherValue(t, s)
		good, empty := filepath.Join(dir, path), filepath.Join(dir, path+"-empty")
		for file, text := range map[string]string{good: other + "\n", empty: " \n"} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		holds(t, mustLoad(t, inFile(path+"_file", good), nil, nil), path, other, "config.yaml:")
		name := variable(path + "_file")
		holds(t, mustLoad(t, inFile(path, other), map[string]string{name: good}, nil), path, other, name)
		for file, words := range map[string]string{empty: "it is empty", filepath.Join(dir, "none"): "no such file"} {
			_, err := load("config.yaml", []byte(inFile(path+"_file", file)), nil, nil)
			if err == nil || !strings.Contains(err.Error(), "cannot be read: "+words) {
				t.Errorf("%s_file: %s: error %v, want %q", path, file, err, words)
			}
		}
	}
	if seen < 3 {
		t.Errorf("only %d secrets", seen)
	}
}
