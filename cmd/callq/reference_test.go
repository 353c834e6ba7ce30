package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const reference = "../../docs/cli.md"

// docs/cli.md is what the commands say of themselves. UPDATE=1 writes it anew.
func TestReference(t *testing.T) {
	t.Parallel()
	got := writeReference(rootCommand(new(app)))
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(reference, []byte(got), 0o644))
	}
	want, err := os.ReadFile(reference)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/cli.md is stale: run `make docs` (-file +code):\n%s", diff)
	}
}

const referenceHead = `# Commands

Every command and flag, generated from the code (` + "`make docs`" + `); ` + "`callq COMMAND --help`" + ` says the same. Data goes to
stdout, logs and progress to stderr. What cannot be undone is asked about on a terminal, and needs ` + "`--yes`" + ` off it.

## Exit codes

| code | meaning |
| --: | --- |
`

func writeReference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, c := range []struct {
		code    int
		meaning string
	}{
		{exitDone, "done; of a daemon also: drained after SIGTERM or Ctrl-C"},
		{exitFailed, "failed"},
		{exitUsage, "the command or the configuration is wrong"},
		{exitFindings, "a check found problems"},
		{exitNotFound, "there is no such call, queue or limit"},
		{exitUnreachable, "Postgres or Redis could not be reached within `--timeout` (daemons wait instead)"},
	} {
		fmt.Fprintf(&b, "| %d | %s |\n", c.code, c.meaning)
	}
	b.WriteString("\n## Flags of every command\n\n")
	writeFlags(&b, root.PersistentFlags())
	for _, cmd := range root.Commands() {
		writeCommand(&b, cmd, "##")
	}
	return b.String()
}

func writeCommand(b *strings.Builder, cmd *cobra.Command, heading string) {
	if cmd.Hidden {
		return
	}
	fmt.Fprintf(b, "\n%s %s\n\n", heading, cmd.CommandPath())
	if cmd.HasSubCommands() {
		fmt.Fprintf(b, "%s.\n", cmd.Short)
	} else {
		fmt.Fprintf(b, "    %s\n\n%s\n", cmd.UseLine(), about(cmd))
	}
	if cmd.LocalNonPersistentFlags().HasFlags() {
		b.WriteString("\n")
		writeFlags(b, cmd.LocalNonPersistentFlags())
	}
	if cmd.Name() == "completion" {
		b.WriteString("\nThe shells are bash, fish, powershell and zsh. `callq completion SHELL --help` says how to load what it prints.\n")
		return // cobra describes its verbs
	}
	for _, verb := range cmd.Commands() {
		writeCommand(b, verb, heading+"#")
	}
}

func about(cmd *cobra.Command) string {
	if cmd.Long == "" {
		return strings.TrimSuffix(cmd.Short, ".") + "."
	}
	return strings.TrimSpace(cmd.Long)
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | type | default | meaning |\n| --- | --- | --- | --- |\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		kind, preset := f.Value.Type(), f.DefValue
		if preset == "[]" || preset == "false" || preset == "0" {
			preset = ""
		}
		if preset != "" {
			preset = "`" + preset + "`"
		}
		cells := []string{name, kind, preset, f.Usage}
		for _, text := range cells {
			b.WriteString(strings.TrimRight("| "+strings.ReplaceAll(text, "|", "\\|"), " ") + " ")
		}
		b.WriteString("|\n")
	})
}
