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
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo() // nil: not built as a module
			v := versionOf(info)
			if a.output != "table" {
				return a.printJSON(v)
			}
			fmt.Fprintln(a.stdout, v)
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

func completionCommand(a *app) *cobra.Command {
	shell := func(name, how string, write func(*cobra.Command, io.Writer) error) *cobra.Command {
		return &cobra.Command{
			Use: name, Short: "Print the completion of " + name,
			Long: "Print what completes callq's commands and flags in " + name + ". To load it:\n\n    " + how,
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return write(cmd.Root(), a.stdout) },
		}
	}
	return group("completion", "Print what completes commands and flags in a shell",
		shell("bash", "source <(callq completion bash)", func(root *cobra.Command, w io.Writer) error {
			return root.GenBashCompletionV2(w, true)
		}),
		shell("zsh", "source <(callq completion zsh)", (*cobra.Command).GenZshCompletion),
		shell("fish", "callq completion fish | source", func(root *cobra.Command, w io.Writer) error {
			return root.GenFishCompletion(w, true)
		}),
		shell("powershell", "callq completion powershell | Out-String | Invoke-Expression",
			(*cobra.Command).GenPowerShellCompletionWithDesc),
	)
}

// completeValues lets a shell complete what flags take, not only their names.
func completeValues(root *cobra.Command) error {
	if err := root.MarkPersistentFlagFilename("config", "yaml", "yml"); err != nil {
		return err
	}
	forms := cobra.FixedCompletions([]string{"table", "json", "jsonl"}, cobra.ShellCompDirectiveNoFileComp)
	return root.RegisterFlagCompletionFunc("output", forms)
}
