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

// urlFlag knows whether it was given. It never shows its value, which may hold a password.
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

// durationFlag knows days and weeks, as the configuration does.
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

// sinceFlag is an instant, given as a time or as how long ago it was.
type sinceFlag struct{ time.Time }

func (f *sinceFlag) Type() string { return "time" }
func (f *sinceFlag) String() string {
	if f.IsZero() {
		return ""
	}
	return f.Format(time.RFC3339)
}

func (f *sinceFlag) Set(text string) (err error) {
	if d, not := config.ParseDuration(text); not == nil {
		f.Time = time.Now().Add(-d)
		return nil
	}
	if f.Time, err = time.Parse(time.RFC3339, text); err != nil {
		return errors.New("write a time such as 2026-11-01T00:00:00Z, or how long ago, such as 24h or 7d")
	}
	return nil
}

// parseTime reads a flag's instant.
func parseTime(flag, text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, usagef("--%s %q is not a time: write it as 2026-11-21T09:00:00Z or 2026-11-21T10:00:00+01:00", flag, text)
	}
	return at, nil
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
