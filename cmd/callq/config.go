package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/callq/callq"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/policy"
)

func configCommand(a *app) *cobra.Command {
	return group("config", "Write, check, show and apply the configuration", configInitCommand(a), &cobra.Command{
		Use: "schema", Short: "Print the JSON schema of the configuration, for editors",
		Long: "Print the JSON schema of the configuration. Editors that know YAML complete and check keys by it: write it beside\n" +
			"config.yaml, as config.schema.json, and begin that with `# yaml-language-server: $schema=config.schema.json`.\n" +
			"`config check` checks more.",
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(a.stdout, callq.ConfigSchema)
			return err
		},
	}, &cobra.Command{
		Use: "check", Short: "Check the file, the environment and the flags, and show every mistake",
		Long: "Check the file, the environment and the flags. Show every mistake, where it is and what is allowed.\n" +
			"Exit code 2 if there is one. Connects to nothing.",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			for _, warning := range cfg.Unread() {
				fmt.Fprintln(a.stderr, "warning:", warning)
			}
			return a.show(map[string]string{"file": cfg.File}, func(w io.Writer) {
				fmt.Fprintln(w, "ok:", cmp.Or(cfg.File, "no file, defaults and environment only"))
			})
		},
	}, &cobra.Command{
		Use: "show", Short: "Show every setting in force, and where it comes from",
		Long: "Show every setting in force, and where it comes from: a flag, a variable, a line of the file, or the\n" +
			"default. Passwords are masked. Connects to nothing.",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			return table[config.Value]{
				"KEY,VALUE,SOURCE", func(v config.Value) []any { return []any{v.Key, v.Value, v.Source} },
			}.show(a, cfg.Values(), nil)
		},
	}, &cobra.Command{
		Use: "apply", Short: "Put the file's limits, queues and budgets in force",
		Long: "Put the file's limits, queues and budgets in force, in place of what was applied last. Use it as a step of a\n" +
			"deployment, or to go back to a file that has been replaced. When it returns, nothing starts beyond the new\n" +
			"limits. Running processes need no restart. What `limits set` has set stays.",
		RunE: a.query(func(ctx context.Context, db *database, _ []string) error {
			if db.cfg.File == "" { // without it no limit would hold
				return usagef("no configuration file: name one with -c or CALLQ_CONFIG")
			}
			changes, err := policy.Apply(ctx, db.DB, rules(db.cfg), operator())
			return a.showChanges("configuration", db.cfg.File, changes, err)
		}),
	})
}

func configInitCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "init [FILE|-]", Short: "Write a configuration with every key explained",
		Long: "Write a configuration with every key explained, at its default. FILE defaults to what -c or CALLQ_CONFIG\n" +
			"names, or config.yaml; - is stdout. A file that is there stays as it is.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := cmp.Or(a.configFile, a.env["CALLQ_CONFIG"], "config.yaml")
			if len(args) > 0 {
				path = args[0]
			}
			_, text, _ := strings.Cut(callq.ConfigYAML, "\n") // the first line is for a file that has its schema beside it
			if path == "-" {
				_, err := io.WriteString(a.stdout, text)
				return err
			}
			const mode = 0o644 // a daemon's user may read what another wrote: passwords belong in files of their own
			file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
			if err == nil {
				_, err = file.WriteString(text)
				err = errors.Join(err, file.Close())
			}
			if err != nil {
				return fmt.Errorf("write the configuration: %w", err)
			}
			return a.show(map[string]string{"file": path}, func(w io.Writer) { fmt.Fprintln(w, "wrote", path) })
		},
	}
}
