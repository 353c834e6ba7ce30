package config

import (
	"maps"
	"reflect"
	"slices"
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
		return had == has && reflect.DeepEqual(old, now)
	})
}

// values are all values by path.
func (c *Config) values() map[string]any {
	all := map[string]any{}
	leaves(reflect.ValueOf(*c), "", func(path string, _ reflect.StructField, v reflect.Value) {
		all[path] = v.Interface()
	})
	return all
}
