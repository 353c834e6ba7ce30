package config

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
)

// origins is how a Config was loaded.
type origins struct {
	settings []*setting // in the order of the keys
	byPath   map[string]*setting
	env      map[string]string
	warnings []string
}

// Origin is where the value at a path such as queues.payments.timeout came from: "--postgres-url",
// "CALLQ_HTTP_LISTEN", "config.yaml:12" or "default".
func (c *Config) Origin(path string) string {
	if s := c.origin.byPath[path]; s != nil {
		return s.from.String()
	}
	return "default"
}

// Warnings are of variables in the environment that look like a setting's.
func (c *Config) Warnings() []string { return c.origin.warnings }

// Value is a setting that is in force.
type Value struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`  // as in the file: a number, true or false, a list or a text
	Source string `json:"source"` // --postgres-url, CALLQ_HTTP_LISTEN, config.yaml:12, default
}

// Values are all settings in force, in the order of the keys, with secrets masked.
func (c *Config) Values() []Value {
	var all []Value
	for _, s := range c.origin.settings {
		if s.tag("omitempty") == "" || !s.value.IsZero() {
			all = append(all, Value{Key: s.path, Value: s.shown(), Source: s.from.String()})
		}
	}
	return all
}

// shown is a value as the file may have it, or masked.
func (s *setting) shown() any {
	switch x := s.value.Interface().(type) {
	case int, bool:
		return x
	case []string:
		return append([]string{}, x...)
	case Rates:
		if len(x) < 2 {
			return strings.Join(x, "")
		}
		return []string(x)
	case limit.Rate:
		return budget.RateString(x)
	case Overrides:
		var all []string
		for _, key := range slices.Sorted(maps.Keys(x)) {
			all = append(all, key+"="+x[key])
		}
		return strings.Join(all, ",")
	}
	switch text := fmt.Sprint(s.value); {
	case s.tag("secret") != "" && text != "":
		return redact(text, s.tag("check"))
	case s.value.Kind() != reflect.String && len(s.items) == 1:
		return s.items[0].text // as it was written
	default:
		return regexp.MustCompile(`m0s$`).ReplaceAllString(text, "m") // 1m of 1m0s
	}
}

// redact returns a connection string without its password, for people to read, and nothing of another secret.
func redact(s, check string) string {
	password := `(?i)(password\s*=\s*)('(?:\\.|[^'\\])*'?|(?:\\.|\S)*)`
	switch {
	case check == "any":
		return "xxxxx"
	case strings.Contains(s, "://"):
		s = regexp.MustCompile(`(://[^:@]*:).*@`).ReplaceAllString(s, "${1}xxxxx@")
		password = `(?i)(password=)([^&]*)`
	}
	return regexp.MustCompile(password).ReplaceAllString(s, "${1}xxxxx")
}

// Changed are the keys whose values differ between two configurations, in order, with those that only
// one of them has. Where a value came from does not matter.
func Changed(a, b *Config) []string {
	all := maps.Clone(a.origin.byPath)
	maps.Copy(all, b.origin.byPath)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(path string) bool {
		was, is := a.origin.byPath[path], b.origin.byPath[path]
		return was != nil && is != nil && reflect.DeepEqual(was.value.Interface(), is.value.Interface())
	})
}
