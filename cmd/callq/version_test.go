package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/callq/callq/migrations"
)

func TestVersionOf(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		info *debug.BuildInfo
		want string // before schema and Go
	}{
		"no module":          {nil, "callq (devel) ("},
		"built without git":  {&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "callq (devel) ("},
		"go install @v1.2.3": {&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "callq v1.2.3 ("},
		"built in a checkout": {&debug.BuildInfo{
			Main:     debug.Module{Version: "v0.0.0-20261121121600-42ba740c0ffe"},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "42ba740c0ffe0000"}},
		}, "callq v0.0.0-20261121121600-42ba740c0ffe (commit 42ba740c0ffe0000, "},
	} {
		want := test.want + fmt.Sprintf("schema %d, %s)", migrations.Version(), runtime.Version())
		if got := versionOf(test.info).String(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
