package tasks

import (
	"testing"
	"time"
)

// A host that turns away half of its requests sheds; only one that turns away nearly all of many has too many come together. One that
// answers nothing else is down.
func TestSheds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		bare            func(n int) bool
		sheds, together bool
	}{
		"every second":         {func(n int) bool { return n%2 == 0 }, true, false},
		"ten retries together": {func(n int) bool { return n > 90 }, true, false},
		"nearly all":           {func(n int) bool { return n%10 != 5 }, true, true},
		"all":                  {func(int) bool { return true }, false, true},
	} {
		var s sheds
		sheds, together := false, false
		for n := range 101 {
			sheds, together = s.note("h", c.bare(n), now.Add(time.Duration(n)*time.Second/20))
		}
		if sheds != c.sheds || sheds && together != c.together {
			t.Errorf("%s: sheds %t, together %t", name, sheds, together)
		}
	}
}
