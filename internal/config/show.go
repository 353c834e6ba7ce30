package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
)

// Value is a setting that is in force.
type Value struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`  // as in the file; a number, true or false, a list or a text
	Source string `json:"source"` // --postgres-url, CALLQ_HTTP_LISTEN, config.yaml:12, default
	// Via is where the source sends on to: a secret's file, or the variables that it names.
	Via string `json:"via,omitempty"`
}

// Values are all settings in force, in the order of the keys, without what must stay secret. Of a limit's
// rate and concurrency there is the one that it has; burst and timezone are of their algorithms.
func (c *Config) Values() []Value {
	var all []Value
	leaves(reflect.ValueOf(*c), "", func(path string, f reflect.StructField, v reflect.Value) {
		if rest, ok := strings.CutPrefix(path, "limits."); ok {
			name, key := rest[:strings.LastIndexByte(rest, '.')], f.Tag.Get("key")
			atOnce, algorithm := c.Limits[name].Concurrency > 0, limit.Algorithm(c.Limits[name].Algorithm)
			if key == "rate" && atOnce || key == "concurrency" && !atOnce ||
				key == "burst" && algorithm != limit.TokenBucket || key == "timezone" && algorithm != limit.FixedWindow {
				return
			}
		}
		value := shown(f, v)
		if rest, ok := strings.CutPrefix(path, "limits."); ok && f.Tag.Get("key") == "rate" {
			value = c.Limits[strings.TrimSuffix(rest, ".rate")].rates()
		}
		if rate, ok := v.Interface().(limit.Rate); ok {
			value = budget.RateString(rate)
		}
		all = append(all, Value{Key: path, Value: value, Source: c.Origin(path), Via: c.from[path].via})
	})
	return all
}

// rates are a limit's in the one form in which rates are echoed.
func (lim Limit) rates() any {
	var all []string
	for _, w := range lim.Windows {
		all = append(all, w.Rate.String())
	}
	if len(all) == 1 {
		return all[0]
	}
	return all
}

// shown is a value as it would be written in the file, or masked.
func shown(f reflect.StructField, v reflect.Value) any {
	switch x := v.Interface().(type) {
	case int, bool:
		return x
	case []string:
		return append([]string{}, x...)
	case time.Duration:
		return formatDuration(x)
	case AtMost:
		if x == 0 {
			return "off"
		}
		return formatDuration(time.Duration(x))
	case Bytes:
		return formatBytes(x)
	case Backoff:
		if x.Min == x.Max {
			return formatDuration(x.Min)
		}
		return formatDuration(x.Min) + ".." + formatDuration(x.Max)
	case Rates:
		return append([]string{}, x...)
	case Overrides:
		var all []string
		for _, key := range slices.Sorted(maps.Keys(x)) {
			all = append(all, key+"="+x[key])
		}
		return strings.Join(all, ",")
	}
	text := v.String()
	switch check := f.Tag.Get("check"); {
	case f.Tag.Get("secret") == "" || text == "":
		return text
	case check == "postgres" || check == "redis":
		return Redact(text)
	}
	return "xxxxx"
}

// formatDuration is the shortest form that ParseDuration reads: 7d, 1d12h, 15m, 100ms.
func formatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	text, rest := "", d%day
	if d >= day {
		text = fmt.Sprintf("%dd", d/day)
	}
	if rest == 0 && text != "" {
		return text
	}
	clock := rest.String()
	if strings.HasSuffix(clock, "m0s") {
		clock = strings.TrimSuffix(clock, "0s")
	}
	if strings.HasSuffix(clock, "h0m") {
		clock = strings.TrimSuffix(clock, "0m")
	}
	return text + clock
}

func formatBytes(b Bytes) string {
	switch {
	case b > 0 && b%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", b>>20)
	case b > 0 && b%(1<<10) == 0:
		return fmt.Sprintf("%dKiB", b>>10)
	}
	return fmt.Sprint(int64(b))
}
