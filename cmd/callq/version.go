package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/callq/callq/migrations"
)

// versionInfo is what version prints.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Schema  int64  `json:"schema"`
	Go      string `json:"go"`
}

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program and of its schema",
		RunE: func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo() // nil: not built as a module
			v := versionOf(info)
			return a.show(v, func(w io.Writer) { fmt.Fprintln(w, v) })
		},
	}
}

func (v versionInfo) String() string {
	if v.Commit == "unknown" { // as of `go install …@version`, where the version says all
		return fmt.Sprintf("callq %s (schema %d, %s)", v.Version, v.Schema, v.Go)
	}
	return fmt.Sprintf("callq %s (commit %s, schema %d, %s)", v.Version, v.Commit, v.Schema, v.Go)
}

// versionOf reads the build's own record: an installed module knows its version, a checkout its commit.
func versionOf(info *debug.BuildInfo) versionInfo {
	v := versionInfo{Version: "(devel)", Commit: "unknown", Schema: migrations.Version(), Go: runtime.Version()}
	if info == nil {
		return v
	}
	v.Version = cmp.Or(info.Main.Version, v.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}
