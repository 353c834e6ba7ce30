package config

import (
	"maps"
	"reflect"
	"slices"

	"github.com/callq/callq/internal/limit"
)

// Changed are the keys whose values differ between two configurations, in order: those of limits and
// queues that only one of them has too. Where a value came from is no matter.
func Changed(a, b *Config) []string {
	was, is := a.values(), b.values()
	all := maps.Clone(was)
	maps.Copy(all, is)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(path string) bool {
		old, had := was[path]
		now, has := is[path]
		return had == has && reflect.DeepEqual(canonical(old), canonical(now))
	})
}

// canonical is the one form of what may be written in several.
func canonical(value any) any {
	rates, ok := value.(Rates)
	if !ok {
		return value
	}
	all := []string{}
	for _, text := range rates {
		if r, err := limit.ParseRate(text); err == nil {
			text = r.String()
		}
		all = append(all, text)
	}
	return all
}

// values are all values by path.
func (c *Config) values() map[string]any {
	all := map[string]any{}
	leaves(reflect.ValueOf(*c), "", func(path string, _ reflect.StructField, v reflect.Value) {
		all[path] = v.Interface()
	})
	return all
}
