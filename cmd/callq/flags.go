package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/callq/callq/internal/config"
)

// textFlag is a flag whose text a function reads. It shows its default only: what is given may hold a password.
type textFlag struct {
	kind, preset string
	set          func(text string) error
}

func (f *textFlag) String() string        { return f.preset }
func (f *textFlag) Type() string          { return f.kind }
func (f *textFlag) Set(text string) error { return f.set(text) }

// durationVar adds a flag that knows days and weeks, as the configuration does. What d holds is its default.
func durationVar(flags *pflag.FlagSet, d *time.Duration, name, usage string) {
	f := &textFlag{kind: "duration", set: func(text string) (err error) {
		*d, err = config.ParseDuration(text)
		return err
	}}
	if *d != 0 {
		f.preset = d.String()
	}
	flags.Var(f, name, usage)
}

// timeVar adds a flag that is an instant.
func timeVar(flags *pflag.FlagSet, at *time.Time, name, usage string) {
	flags.Var(&textFlag{kind: "time", set: func(text string) (err error) {
		if *at, err = time.Parse(time.RFC3339, text); err != nil {
			return fmt.Errorf("%s is not a time: write it as 2026-11-21T09:00:00Z or 2026-11-21T10:00:00+01:00", config.Quote(text))
		}
		return nil
	}}, name, usage)
}

// argsError says which arguments a command takes, where cobra speaks of a command or a number.
func argsError(cmd *cobra.Command, err error) error {
	if cmd.HasSubCommands() || cmd.Args == nil {
		return err
	}
	if refused := cmd.Args(cmd, cmd.Flags().Args()); refused == nil || refused.Error() != err.Error() {
		return err // about a flag
	}
	if want := strings.TrimSuffix(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath()), " [flags]"); want != "" {
		return fmt.Errorf("%s takes%s: %d were given", cmd.CommandPath(), want, cmd.Flags().NArg())
	}
	return fmt.Errorf("%s takes no arguments: %q", cmd.CommandPath(), cmd.Flags().Arg(0))
}

// flagError says what is wrong with a flag's value, without naming anything of Go.
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
