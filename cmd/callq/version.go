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
			fmt.Fprintf(p.stdout, "callq %s (commit %s, schema %d, %s)\n", v.Version, v.Commit, v.Schema, v.Go)
			return nil
		},
	}
}

func buildVersion() versionInfo {
	v := versionInfo{Version: "(devel)", Commit: "unknown", Schema: migrations.Version(), Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
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
