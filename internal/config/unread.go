package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Unread are warnings about variables that are callq's by their name, and that nothing reads: a typo, or a limit or queue that the file
// does not have. Their values are not shown.
func (c *Config) Unread() (warnings []string) {
	read := maps.Clone(c.origin.read)
	for _, secret := range c.HTTPTask.Secrets {
		read[secret.Env] = true
	}
	for _, name := range slices.Sorted(maps.Keys(c.origin.env)) {
		if !strings.HasPrefix(name, "CALLQ_") || strings.HasPrefix(name, "CALLQ_TEST_") || c.origin.env[name] == "" || read[name] {
			continue
		}
		text := fmt.Sprintf("%s is set, and nothing reads it", name)
		if like := nearest(name, slices.Sorted(maps.Keys(read))); like != "" {
			text += ": " + like + " is meant, perhaps"
		}
		warnings = append(warnings, text)
	}
	return warnings
}

// nearest is the name that takes the fewest changes, up to 3; "": there is none.
func nearest(to string, names []string) (best string) {
	least := 4
	for _, name := range names {
		if n := distance(to, name); n < least {
			best, least = name, n
		}
	}
	return best
}

// distance is how many letters of a have to be changed, inserted or removed to make b of it. Source: V. Levenshtein, "Binary codes
// capable of correcting deletions, insertions, and reversals", 1966.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
