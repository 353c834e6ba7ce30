//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"

	"github.com/callq/callq/internal/local"
)

// fakeClock is an environment in which a program's clock is off by the seconds in a file, such as +70.5. What
// is in the file may change.
func fakeClock(t *testing.T, file string) []string {
	t.Helper()
	p, err := local.Find("faketime", []string{"faketime"})
	if err != nil {
		t.Fatalf("%v: run `make deps`", err)
	}
	for _, pattern := range []string{"../lib/*/faketime/libfaketime.so.1", "../lib*/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(filepath.Join(p.Dir, pattern)); len(found) > 0 { // fails for a bad pattern only
			return []string{
				"LD_PRELOAD=" + found[0], "FAKETIME_TIMESTAMP_FILE=" + file,
				"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
			}
		}
	}
	t.Fatalf("there is no libfaketime.so.1 beside %s", p.Dir)
	return nil
}
