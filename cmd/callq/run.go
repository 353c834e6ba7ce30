package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/callq/callq/internal/config"
)

// program is one run of callq: what it was started with, and what the global flags say.
type program struct {
	stdin          io.Reader
	input          io.Reader // stdin, until the program is to end
	stdout, stderr io.Writer // data; logs, progress and errors
	environ        []string

	configFile string
	urls       map[string]*urlFlag // by the path of the setting
	output     string              // table, json or jsonl
	yes        bool
	timeout    time.Duration
}

const defaultTimeout = 10 * time.Second

// run is the program. It returns the exit code. When ctx ends, or with the first SIGINT or SIGTERM,
// a daemon drains and a command stops; a second signal ends at once.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, environ []string) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	p := &program{stdin: stdin, stdout: stdout, stderr: stderr, environ: environ, input: untilDone{ctx, stdin}}
	done := make(chan int, 1)
	go func() { done <- p.execute(ctx, args) }()
	for signalled := false; ; {
		select {
		case code := <-done:
			return code
		case sig := <-signals:
			if signalled {
				fmt.Fprintf(stderr, "callq: ended at once by a second signal (%s)\n", sig)
				return exitFailed
			}
			signalled = true
			stop()
		}
	}
}

// untilDone is a reader that ends with ctx, also while it waits for what somebody has yet to type.
type untilDone struct {
	ctx  context.Context
	from io.Reader
}

func (r untilDone) Read(b []byte) (int, error) {
	type outcome struct {
		n   int
		err error
	}
	read, own := make(chan outcome, 1), make([]byte, len(b)) // b is the caller's again when ctx has ended
	go func() {
		n, err := r.from.Read(own)
		read <- outcome{n, err}
	}()
	select {
	case got := <-read:
		return copy(b, own[:got.n]), got.err
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}

// execute runs the command that args name and returns the exit code.
func (p *program) execute(ctx context.Context, args []string) int {
	root := p.root()
	begun := false // an error before a command begins is one of usage
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if err := p.checkFlags(); err != nil {
			return err
		}
		begun = true
		return nil
	}
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !begun {
		err = argsError(cmd, err)
		err = usagef("%w (see %s --help)", err, cmd.CommandPath())
	}
	return p.report(err)
}

func (p *program) root() *cobra.Command {
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
	root.CompletionOptions.DisableDefaultCmd = true // it has its own, which refuses what it does not know
	root.AddCommand(
		p.serveCommand(), p.dispatchCommand(), p.workCommand(), p.migrateCommand(),
		p.enqueueCommand(), p.callsCommand(), p.queuesCommand(), p.limitsCommand(), p.statusCommand(),
		p.verifyCommand(), p.doctorCommand(), p.maintainCommand(), p.configCommand(), p.healthCommand(), p.demoCommand(), p.devCommand(),
		p.versionCommand(), p.completionCommand(),
	)
	flags := root.PersistentFlags()
	flags.StringVarP(&p.configFile, "config", "c", "", "configuration file (default: CALLQ_CONFIG, ./config.yaml, /etc/callq/config.yaml)")
	p.urls = map[string]*urlFlag{"postgres.url": {}, "redis.url": {}}
	flags.Var(p.urls["postgres.url"], "postgres-url", "Postgres to use, over the environment and the file")
	flags.Var(p.urls["redis.url"], "redis-url", "Redis to use, over the environment and the file")
	flags.StringVarP(&p.output, "output", "o", "table", "form of the output: table, json or jsonl")
	flags.BoolVar(&p.yes, "yes", false, "do not ask before what cannot be undone")
	p.timeout = defaultTimeout
	flags.Var((*durationFlag)(&p.timeout), "timeout", "how long to wait for Postgres and Redis (dispatch --once: 60s)")
	if err := completeValues(root); err != nil {
		panic(err) // a slip in a flag's name; every test meets it
	}
	return root
}

func (p *program) checkFlags() error {
	switch p.output {
	case "table", "json", "jsonl":
	default:
		return fmt.Errorf("-o %q is not a form of output: table, json or jsonl", p.output)
	}
	if p.timeout <= 0 {
		return fmt.Errorf("--timeout must be above 0")
	}
	return nil
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
		RunE: func(*cobra.Command, []string) error { return nil }, // never: its Args refuse all
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// loadConfig is readConfig, which also says what looks like a slip.
func (p *program) loadConfig() (*config.Config, error) {
	cfg, err := p.readConfig()
	if err != nil {
		return nil, err
	}
	for _, warning := range cfg.Warnings() {
		fmt.Fprintln(p.stderr, "callq: warning:", warning)
	}
	return cfg, nil
}

// readConfig reads the configuration, flags over environment over file over defaults.
func (p *program) readConfig() (*config.Config, error) {
	given := map[string]string{}
	for path, url := range p.urls {
		if url.given {
			given[path] = url.text
		}
	}
	return config.Load(config.Source{Path: p.configFile, Flags: given, Environ: p.environ})
}

// argsError says of a command without verbs which arguments it takes, where cobra speaks of a command or a number.
func argsError(cmd *cobra.Command, err error) error {
	if cmd.HasSubCommands() || cmd.Args == nil {
		return err
	}
	if refused := cmd.Args(cmd, cmd.Flags().Args()); refused == nil || refused.Error() != err.Error() {
		return err // a flag's
	}
	if want := strings.TrimSuffix(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath()), " [flags]"); want != "" {
		return fmt.Errorf("%s takes%s: %d were given", cmd.CommandPath(), want, cmd.Flags().NArg())
	}
	return fmt.Errorf("%s takes no arguments: %q", cmd.CommandPath(), cmd.Flags().Arg(0))
}

// flagError says what is wrong with a flag's value, without the names of Go.
func flagError(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag, value := "--"+invalid.GetFlag().Name, config.Quote(invalid.GetValue())
	number, ok := errors.AsType[*strconv.NumError](err)
	switch {
	case !ok:
		return fmt.Errorf("%s: %w", flag, errors.Unwrap(err))
	case invalid.GetFlag().Value.Type() == "bool":
		return fmt.Errorf("%s: %s is not true or false", flag, value)
	case errors.Is(number.Err, strconv.ErrRange):
		return fmt.Errorf("%s: %s is out of bounds", flag, value)
	}
	return fmt.Errorf("%s: %s is not a whole number", flag, value)
}

// urlFlag knows whether it was given. Its value is never shown: it may hold a password.
type urlFlag struct {
	given bool
	text  string
}

func (f *urlFlag) String() string { return "" }
func (f *urlFlag) Type() string   { return "URL" }
func (f *urlFlag) Set(text string) error {
	f.given, f.text = true, text
	return nil
}

// durationFlag is a flag that knows days and weeks, as the configuration does.
type durationFlag time.Duration

func (f *durationFlag) Type() string { return "duration" }
func (f *durationFlag) String() string {
	if *f == 0 {
		return "" // not given: help shows no default
	}
	return time.Duration(*f).String()
}

func (f *durationFlag) Set(text string) error {
	d, err := config.ParseDuration(text)
	*f = durationFlag(d)
	return err
}
