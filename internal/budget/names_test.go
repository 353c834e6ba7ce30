package budget

import (
	"slices"
	"testing"
)

// Whatever budgets and keys are called, no two share a key in Redis, and each keeps to its slot.
func TestNamesInRedis(t *testing.T) {
	t.Parallel()
	names := []string{"a", "a:log", "a:promised", "a:k:b", "a#1", "a/b", "a/b:log", "a/b:k:c", "a}", "a}:log", "{a", "a%3Alog", "a%253Alog", "a/#1", "a//b"}
	of := map[string]string{}
	note := func(key, what string) {
		if other, taken := of[key]; taken && other != what {
			t.Errorf("%s and %s are both %q", what, other, key)
		}
		of[key] = what
	}
	for _, name := range names {
		for _, key := range append(slices.Clone(names), "", "k") {
			for _, perKey := range []bool{false, true} {
				if !perKey && key != "" {
					continue
				}
				u := Units{Name: name, Key: key}
				u.Rule.PerKey = perKey
				what := name + " per key " + key
				if !perKey {
					what = name
				}
				state := u.redisKey()
				note(state, what)
				note(state+":log", what+" log")
				note(state+":promised", what+" promised")
			}
		}
	}
}
