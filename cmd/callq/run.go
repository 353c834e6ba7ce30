package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/words"
	"github.com/callq/callq/migrations"
)

// app is one run of the program: its streams, its environment and the global flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer // data; logs, progress and errors
	env            map[string]string

	configFile string
	urls       map[string]string // given by flags, by the path of the setting
	output     string            // table, json or jsonl
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

	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, env: variables(environ)}
	done := make(chan error, 1)
	go func() { done <- a.execute(ctx, args) }()
	for range 2 {
		select {
		case err := <-done:
			return err
		case <-signals:
			stop()
		}
	}
	return errors.New("ended at once by a second signal")
}

// input is stdin, which ends with ctx even while it waits for somebody to type.
func (a *app) input(ctx context.Context) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, a.stdin)
		w.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	return r
}

// execute runs the command that args name.
func (a *app) execute(ctx context.Context, args []string) error {
	root := rootCommand(a)
	begun := false // an error before a command begins is a usage error
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if a.output != "table" && a.output != "json" && a.output != "jsonl" {
			return fmt.Errorf("-o %q is not a form of output: table, json or jsonl", a.output)
		}
		begun = cmd.ValidateRequiredFlags() == nil && cmd.ValidateFlagGroups() == nil
		return nil
	}
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !begun {
		return usagef("%w (see %s --help)", err, cmd.CommandPath())
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
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.AddCommand(
		serveCommand(a), dispatchCommand(a), workCommand(a), migrateCommand(a), enqueueCommand(a), callsCommand(a),
		queuesCommand(a), routesCommand(a), limitsCommand(a), statusCommand(a), verifyCommand(a), doctorCommand(a), maintainCommand(a),
		configCommand(a), healthCommand(a), demoCommand(a), devCommand(a), versionCommand(a),
	)
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		checkArgs(cmd)
		completeNames(a, cmd)
	}
	a.urls, a.timeout = map[string]string{}, 10*time.Second
	flags := root.PersistentFlags()
	flags.StringVarP(&a.configFile, "config", "c", "",
		"configuration file (default: CALLQ_CONFIG, ./config.yaml, /etc/callq/config.yaml)")
	for _, server := range []string{"postgres", "redis"} {
		flags.Var(&textFlag{kind: "URL", set: func(text string) error {
			a.urls[server+".url"] = text
			return nil
		}}, server+"-url", strings.ToUpper(server[:1])+server[1:]+" to use, over the environment and the file")
	}
	flags.StringVarP(&a.output, "output", "o", "table", "form of the output: table, json or jsonl")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "jsonl"}, cobra.ShellCompDirectiveNoFileComp))
	flags.BoolVar(&a.yes, "yes", false, "do not ask before what cannot be undone")
	durationVar(flags, &a.timeout, time.Millisecond, "timeout", "how long to wait for Postgres and Redis (dispatch --once: 60s)")
	return root
}

// checkArgs has a noun refuse what is not one of its verbs. A command that does not say which arguments it takes, takes
// none.
func checkArgs(cmd *cobra.Command) {
	for _, verb := range cmd.Commands() {
		checkArgs(verb)
	}
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	if cmd.HasSubCommands() {
		cmd.RunE = func(*cobra.Command, []string) error { return usagef("%s needs a verb: see --help", cmd.CommandPath()) }
	}
}

// group is a noun whose verbs are commands of their own.
func group(noun, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: noun, Short: short}
	cmd.AddCommand(verbs...)
	return cmd
}

// loadConfig reads the configuration: flags over environment over file over defaults.
func (a *app) loadConfig() (*config.Config, error) {
	return config.Load(config.Source{Path: a.configFile, Flags: a.urls, Env: a.env})
}

// variables are the environment's, by name. The last of a name counts.
func variables(environ []string) map[string]string {
	env := map[string]string{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	return env
}

// logger writes to stderr, in the configured form.
func (a *app) logger(cfg *config.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Log.Level)) // the configuration allows slog's names only
	options := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(a.stderr, options))
	}
	return slog.New(slog.NewTextHandler(a.stderr, options))
}

// textFlag is a flag whose text a function reads. It shows its default only: what is given may hold a password.
type textFlag struct {
	kind, preset string
	choices      []string // what shells complete, if it is a list of these
	set          func(text string) error
}

func (f *textFlag) String() string        { return f.preset }
func (f *textFlag) Type() string          { return f.kind }
func (f *textFlag) Set(text string) error { return f.set(text) }

// durationVar adds a flag that knows days and weeks, as the configuration does. What d holds is its default.
func durationVar(flags *pflag.FlagSet, d *time.Duration, least time.Duration, name, usage string) {
	f := &textFlag{kind: "duration", set: func(text string) (err error) {
		if *d, err = words.ParseDuration(text); err == nil && *d < least {
			err = fmt.Errorf("%s is less than %s", *d, least)
		}
		return err
	}}
	if *d != 0 {
		f.preset = d.String()
	}
	flags.Var(f, name, usage)
}

// programVersion is the module's version; of a checkout it names the commit.
func programVersion() string {
	if build, ok := debug.ReadBuildInfo(); ok {
		return build.Main.Version
	}
	return "(devel)"
}

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program and of its schema",
		RunE: func(*cobra.Command, []string) error {
			version, schema := programVersion(), migrations.Version()
			return a.show(map[string]any{"version": version, "schema": schema, "go": runtime.Version()}, func(w io.Writer) {
				fmt.Fprintf(w, "callq %s (schema %d, %s)\n", version, schema, runtime.Version())
			})
		},
	}
}
