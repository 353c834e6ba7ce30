package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/config"
)

// app is one run of the program: its streams, its environment and the global flags.
type app struct {
	stdin          io.Reader
	input          io.Reader // stdin, which ends with the run
	stdout, stderr io.Writer // data; logs, progress and errors
	environ        []string

	configFile string
	urls       map[string]*urlFlag // by the path of the setting
	output     string              // table, json or jsonl
	yes        bool
	timeout    time.Duration
}

// run is the program. When ctx ends, or on the first SIGINT or SIGTERM, a daemon drains and a
// command stops. A second signal ends the run at once.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, environ []string) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, environ: environ, input: untilDone{ctx, stdin}}
	done := make(chan error, 1)
	go func() { done <- a.execute(ctx, args) }()
	for signalled := false; ; signalled = true {
		select {
		case err := <-done:
			return err
		case sig := <-signals:
			if signalled {
				return fmt.Errorf("ended at once by a second signal (%s)", sig)
			}
			stop()
		}
	}
}

// untilDone is a reader that ends with ctx, even while it waits for somebody to type.
type untilDone struct {
	ctx  context.Context
	from io.Reader
}

func (r untilDone) Read(b []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	read, buf := make(chan result, 1), make([]byte, len(b)) // b is the caller's again once ctx has ended
	go func() {
		n, err := r.from.Read(buf)
		read <- result{n, err}
	}()
	select {
	case got := <-read:
		return copy(b, buf[:got.n]), got.err
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}

// execute runs the command that args name.
func (a *app) execute(ctx context.Context, args []string) error {
	root := rootCommand(a)
	begun := false // an error before a command begins is a usage error
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		switch {
		case a.output != "table" && a.output != "json" && a.output != "jsonl":
			return fmt.Errorf("-o %q is not a form of output: table, json or jsonl", a.output)
		case a.timeout <= 0:
			return errors.New("--timeout must be above 0")
		}
		begun = true
		return nil
	}
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !begun {
		return usagef("%w (see %s --help)", argsError(cmd, err), cmd.CommandPath())
	}
	return err
}

func rootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "callq",
		Short: "API calls from a Postgres queue, never above the limit the API sets",
		Long: `callq makes third-party API calls from a Postgres queue, never above the limit the API sets.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 a check found problems, 4 not found,
5 Postgres or Redis cannot be reached.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.CompletionOptions.DisableDefaultCmd = true // completionCommand refuses what it does not know
	root.AddCommand(
		serveCommand(a), dispatchCommand(a), workCommand(a), migrateCommand(a), enqueueCommand(a), callsCommand(a),
		queuesCommand(a), limitsCommand(a), statusCommand(a), verifyCommand(a), doctorCommand(a), maintainCommand(a),
		configCommand(a), healthCommand(a), demoCommand(a), devCommand(a), versionCommand(a), completionCommand(a),
	)
	flags := root.PersistentFlags()
	flags.StringVarP(&a.configFile, "config", "c", "", "configuration file (default: CALLQ_CONFIG, ./config.yaml, /etc/callq/config.yaml)")
	a.urls = map[string]*urlFlag{"postgres.url": {}, "redis.url": {}}
	flags.Var(a.urls["postgres.url"], "postgres-url", "Postgres to use, over the environment and the file")
	flags.Var(a.urls["redis.url"], "redis-url", "Redis to use, over the environment and the file")
	flags.StringVarP(&a.output, "output", "o", "table", "form of the output: table, json or jsonl")
	flags.BoolVar(&a.yes, "yes", false, "do not ask before what cannot be undone")
	a.timeout = 10 * time.Second
	flags.Var((*durationFlag)(&a.timeout), "timeout", "how long to wait for Postgres and Redis (dispatch --once: 60s)")
	if err := completeValues(root); err != nil {
		panic(err) // a slip in a flag's name; every test meets it
	}
	return root
}

// group is a noun whose verbs are commands of their own.
func group(noun, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: noun, Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			names := ""
			for _, verb := range verbs {
				names += " " + verb.Name()
			}
			if len(args) == 0 {
				return fmt.Errorf("%s needs a verb:%s", cmd.CommandPath(), names)
			}
			return fmt.Errorf("%q is not a verb of %s:%s", args[0], cmd.CommandPath(), names)
		},
		RunE: func(*cobra.Command, []string) error { return nil }, // never runs: Args refuses everything
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// loadConfig is readConfig, which also warns of what looks like a slip.
func (a *app) loadConfig() (*config.Config, error) {
	cfg, err := a.readConfig()
	if err != nil {
		return nil, err
	}
	for _, warning := range cfg.Warnings() {
		fmt.Fprintln(a.stderr, "callq: warning:", warning)
	}
	return cfg, nil
}

// readConfig reads the configuration: flags over environment over file over defaults.
func (a *app) readConfig() (*config.Config, error) {
	given := map[string]string{}
	for path, url := range a.urls {
		if url.given {
			given[path] = url.text
		}
	}
	return config.Load(config.Source{Path: a.configFile, Flags: given, Environ: a.environ})
}

// variable is the value of an environment variable. The last of a name counts.
func (a *app) variable(name string) (value string) {
	for _, e := range a.environ {
		if text, ok := strings.CutPrefix(e, name+"="); ok {
			value = text
		}
	}
	return value
}

// logger writes to stderr as the configuration says.
func (a *app) logger(cfg *config.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
		level = slog.LevelInfo // cannot happen: the configuration allows slog's names only
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(a.stderr, options))
	}
	return slog.New(slog.NewTextHandler(a.stderr, options))
}
