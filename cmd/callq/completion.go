package main

import (
	"io"

	"github.com/spf13/cobra"
)

func (p *program) completionCommand() *cobra.Command {
	shell := func(name, how string, write func(*cobra.Command, io.Writer) error) *cobra.Command {
		return &cobra.Command{
			Use: name, Short: "Print the completion of " + name,
			Long: "Print what completes callq's commands and flags in " + name + ". To load it:\n\n    " + how,
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return write(cmd.Root(), p.stdout) },
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
