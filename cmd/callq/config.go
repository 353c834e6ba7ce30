package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/callq/callq/cmd/callq/config"
)

func (p *program) configCommand() *cobra.Command {
	return group("config", "Check the configuration", &cobra.Command{
		Use: "check", Short: "Check the file, the environment and the flags, and show every mistake",
		Long: "Check the file, the environment and the flags, and show every mistake with its place and what is\n" +
			"allowed. Exit code 2 when there is one. It connects to nothing.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return p.configCheck() },
	})
}

// checked is what config check prints with -o json.
type checked struct {
	OK       bool             `json:"ok"`
	File     string           `json:"file"` // empty: none
	Warnings []string         `json:"warnings"`
	Problems []config.Problem `json:"problems"`
}

func (p *program) configCheck() error {
	cfg, err := p.loadConfig()
	answer := checked{OK: err == nil, Warnings: []string{}, Problems: []config.Problem{}}
	if problems, ok := errors.AsType[*config.Error](err); ok {
		answer.Problems = problems.Problems
	}
	if cfg != nil {
		answer.File = cfg.File
		answer.Warnings = append(answer.Warnings, cfg.Warnings()...)
	}
	if p.output != "table" {
		if printErr := p.printJSON(answer); printErr != nil {
			return printErr
		}
	} else if err == nil {
		fmt.Fprintln(p.stdout, "ok:", cmp.Or(answer.File, "no file, defaults and environment only"))
	}
	return err
}
