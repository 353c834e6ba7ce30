package config

import (
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// fields yields the fields of a section that have a key.
func fields(t reflect.Type) iter.Seq[reflect.StructField] {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); f.Tag.Get("key") != "" && !yield(f) {
				return
			}
		}
	}
}

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for f := range fields(t) {
		if f.Tag.Get("key") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for f := range fields(t) {
		keys = append(keys, f.Tag.Get("key"))
	}
	return keys
}

// isNames tells whether a type has a section for each of some names: limits, queues.
func isNames(t reflect.Type) bool {
	return t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct
}

func isSection(t reflect.Type) bool { return t.Kind() == reflect.Struct && len(keysOf(t)) > 0 }

// leaves visits every value below a section, those of each limit and queue too. Where the section can
// be set, it keeps what visit sets.
func leaves(section reflect.Value, path string, visit func(path string, f reflect.StructField, v reflect.Value)) {
	for f := range fields(section.Type()) {
		v, child := section.FieldByIndex(f.Index), join(path, f.Tag.Get("key"))
		switch {
		case isNames(v.Type()):
			for _, name := range slices.SortedFunc(slices.Values(v.MapKeys()), byText) {
				entry := reflect.New(v.Type().Elem()).Elem()
				entry.Set(v.MapIndex(name))
				leaves(entry, join(child, name.String()), visit)
				if v.CanSet() {
					v.SetMapIndex(name, entry)
				}
			}
		case isSection(v.Type()):
			leaves(v, child, visit)
		default:
			visit(child, f, v)
		}
	}
}

func byText(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }

// setDefaults gives every value below a section its default, and every map an empty one.
func setDefaults(section reflect.Value) {
	for f := range fields(section.Type()) {
		v := section.FieldByIndex(f.Index)
		switch text := f.Tag.Get("default"); {
		case isNames(v.Type()):
			v.Set(reflect.MakeMap(v.Type()))
		case isSection(v.Type()):
			setDefaults(v)
		case text != "":
			if err := setField(v, f, text); err != nil {
				panic("config: the default of " + f.Name + ": " + err.Error()) // a slip in a tag; every test meets it
			}
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// variable is the environment's name of a path: CALLQ_HTTP_LISTEN of http.listen.
func variable(path string) string {
	return "CALLQ_" + strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(path))
}

// flagName is the flag of a path: --postgres-url of postgres.url.
func flagName(path string) string {
	return "--" + strings.NewReplacer(".", "-", "_", "-").Replace(path)
}

// slipsIn notes variables that nearly have the name of a setting. They are no mistakes for sure:
// other programs and orchestrators make such names too (CALLQ_REDIS_PORT is a Kubernetes service's).
func slipsIn(env, names map[string]string) []string {
	var slips []string
	known := slices.Sorted(maps.Keys(names))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !strings.HasPrefix(name, "CALLQ_") || name == "CALLQ_CONFIG" || env[name] == "" || names[name] != "" {
			continue
		}
		switch near := didYouMean(name, known); {
		case near != "":
			slips = append(slips, name+" is not a setting"+near)
		case isOfEntry(name, "CALLQ_LIMITS_", Limit{}), isOfEntry(name, "CALLQ_QUEUES_", Queue{}), isOfEntry(name, "CALLQ_BUDGETS_", Budget{}):
			slips = append(slips, name+" is of a limit, queue or budget that the file does not have")
		}
	}
	return slips
}

func isOfEntry(name, prefix string, entry any) bool {
	return strings.HasPrefix(name, prefix) && slices.ContainsFunc(keysOf(reflect.TypeOf(entry)), func(key string) bool {
		return strings.HasSuffix(name, "_"+strings.ToUpper(key))
	})
}

// didYouMean names the known word that is nearest to a mistyped one, if one is near.
func didYouMean(word string, known []string) string {
	best, bestAt := "", min(2, len(word)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < bestAt {
			best, bestAt = k, d
		}
	}
	if best == "" {
		return ""
	}
	return " (did you mean " + best + "?)"
}

// distance counts the letters to insert, delete, change or swap to make b of a.
func distance(a, b string) int {
	before, prev := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			changed := prev[j]
			if a[i] != b[j] {
				changed++
			}
			row[j+1] = min(changed, prev[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(b)]
}
