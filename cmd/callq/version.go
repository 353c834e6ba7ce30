package main

import (
	"cmp"
	"fmt"
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

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program and of its schema",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion()
			if p.output != "table" {
				return p.printJSON(v)
			}
			fmt.Fprintln(p.stdout, v)
			return nil
		},
	}
}

func (v versionInfo) String() string {
	if v.Commit == "unknown" { // as of `go install …@version`, where the version says all
		return fmt.Sprintf("callq %s (schema %d, %s)", v.Version, v.Schema, v.Go)
	}
	return fmt.Sprintf("callq %s (commit %s, schema %d, %s)", v.Version, v.Commit, v.Schema, v.Go)
}

func buildVersion() versionInfo {
	info, _ := debug.ReadBuildInfo() // nil: not built as a module
	return versionOf(info)
}

// versionOf says what the build says of itself: a module that was installed knows its version, a checkout
// its commit.
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
