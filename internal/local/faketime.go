package local

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
)

func faketimeWanted() wanted {
	return wanted{
		name:     "faketime",
		variable: "CALLQ_FAKETIME_BIN",
		binaries: [][]string{{"faketime"}},
		folders:  []string{"/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"},
		packages: map[string][]string{
			"apt-get": {"faketime"}, "dnf": {"libfaketime"}, "apk": {"libfaketime"}, "brew": {"libfaketime"},
		},
		cache: cacheFolder(),
	}
}

// fakeClock is an environment in which a program's clock is off by the seconds in a file, such as +70.5, which may change.
func fakeClock(ctx context.Context, file string, log *slog.Logger) ([]string, error) {
	p, err := provide(ctx, faketimeWanted(), log)
	if err != nil {
		return nil, err
	}
	for _, pattern := range []string{"../lib/*/faketime/libfaketime.so.1", "../lib*/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(filepath.Join(p.dir, pattern)); len(found) > 0 { // fails on a bad pattern only
			return []string{
				"LD_PRELOAD=" + found[0], "FAKETIME_TIMESTAMP_FILE=" + file,
				"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
			}, nil
		}
	}
	return nil, fmt.Errorf("libfaketime.so.1: %w beside %s", errMissing, p.dir)
}
