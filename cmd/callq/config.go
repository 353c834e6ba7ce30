package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/policy"
)

func (p *program) configCommand() *cobra.Command {
	return group("config", "Write, check, show and apply the configuration", p.configInitCommand(), &cobra.Command{
		Use: "check", Short: "Check the file, the environment and the flags, and show every mistake",
		Long: "Check the file, the environment and the flags, and show every mistake with its place and what is\n" +
			"allowed. Exit code 2 when there is one. It connects to nothing.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return p.configCheck() },
	}, &cobra.Command{
		Use: "show", Short: "Show every setting in force, and where it comes from",
		Long: "Show every setting in force, and where it comes from: a flag, a variable, a line of the file, the\n" +
			"file of a secret, or the default. Passwords are masked. It connects to nothing.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return p.configShow() },
	}, p.configApplyCommand())
}

func (p *program) configInitCommand() *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use: "init [FILE|-]", Short: "Write a configuration with every key explained",
		Long: "Write a configuration with every key explained, at its default. FILE is by default what -c or\n" +
			"CALLQ_CONFIG names, or config.yaml; - is stdout. A file that is there is kept unless you agree.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := cmp.Or(p.configFile, p.variable("CALLQ_CONFIG"), "config.yaml")
			if len(args) > 0 {
				path = args[0]
			}
			return p.configInit(path, force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file, as --yes does")
	return cmd
}

func (p *program) configApplyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "apply", Short: "Put the file's limits, queues and budgets in force",
		Long: "Put the file's limits, queues and budgets in force, in place of what was applied last, also where they were\n" +
			"in force before and have been replaced: as a step of a deployment, or to go back. When it returns, nothing\n" +
			"starts beyond the new limits. Running processes need no restart for it. What `limits set` has set stays.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
				if cfg.File == "" { // without it no limit would hold
					return usagef("no configuration file: name one with -c or CALLQ_CONFIG")
				}
				changes, err := policy.Apply(ctx, pool, rules(cfg), p.user())
				return p.sayChanges("configuration", cfg.File, changes, err)
			})
		},
	}
}

func (p *program) configInit(path string, force bool) error {
	if path == "-" {
		_, err := io.WriteString(p.stdout, callq.ConfigYAML)
		return err
	}
	p.yes = p.yes || force
	err := writeNew(path, callq.ConfigYAML)
	if errors.Is(err, fs.ErrExist) {
		if err := p.confirm(path + " is there. Overwrite it?"); err != nil {
			return fmt.Errorf("%s is there already: %w", path, err)
		}
		err = os.WriteFile(path, []byte(callq.ConfigYAML), configMode)
	}
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if p.output != "table" {
		return p.printJSON(map[string]string{"file": path})
	}
	fmt.Fprintln(p.stdout, "wrote", path)
	return nil
}

// configMode lets a daemon's user read what another wrote: passwords are better kept in files of their own.
const configMode = 0o644

// writeNew refuses to touch what is there; the error is then fs.ErrExist.
func writeNew(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, configMode)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// variable is the value of a variable of the environment.
func (p *program) variable(name string) (value string) {
	for _, e := range p.environ { // the last of a name holds
		if text, ok := strings.CutPrefix(e, name+"="); ok {
			value = text
		}
	}
	return value
}

func valueText(v config.Value) string {
	if list, ok := v.Value.([]string); ok {
		return dash(strings.Join(list, ", "))
	}
	return dash(fmt.Sprint(v.Value))
}

func (p *program) configShow() error {
	cfg, err := p.loadConfig()
	if err != nil {
		return err
	}
	return printRows(p, cfg.Values(),
		column[config.Value]{"KEY", func(v config.Value) string { return v.Key }},
		column[config.Value]{"VALUE", valueText},
		column[config.Value]{"SOURCE", func(v config.Value) string {
			if v.Via == "" {
				return v.Source
			}
			return v.Source + " (" + v.Via + ")"
		}},
	)
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
