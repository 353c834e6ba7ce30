package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/doctor"
)

func doctorCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Look for what keeps callq from working, with the fix",
		Long: `Look for what keeps callq from working, or soon will: the schema, clocks, settings of Postgres and Redis, old
snapshots, bloat, stuck calls, missing processes. Each check says ok, note or problem, and how to fix it. It
changes nothing, and may run beside everything else. Exit code 3 if there are problems, 5 if Postgres or Redis
cannot be reached; with notes alone it is 0.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return examine(cmd.Context(), a) },
	}
}

// examine looks at both servers, whether or not the other can be reached.
func examine(ctx context.Context, a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if _, err := cfg.RedisURL(); err != nil {
		return err
	}
	var findings []doctor.Finding
	code := exitFindings
	for _, server := range []struct {
		name    string
		examine func(context.Context, *app, *config.Config) ([]doctor.Finding, error)
	}{{"postgres", examinePostgres}, {"redis", examineRedis}} {
		found, err := server.examine(ctx, a, cfg)
		reachable := doctor.Finding{Check: server.name + " reachable", Level: doctor.OK}
		if err != nil {
			if is, _ := judge(err); is != exitUnreachable {
				return err
			}
			code, reachable.Level, reachable.What = exitUnreachable, doctor.Problem, oneLine(err.Error())
			reachable.Fix = "see that it runs, and that " + server.name + ".url is right: callq config show"
		}
		findings = append(append(findings, reachable), found...)
	}
	if err := printFindings(a, findings); err != nil {
		return err
	}
	problems := 0
	for _, f := range findings {
		if f.Level == doctor.Problem {
			problems++
		}
	}
	switch problems {
	case 0:
		return nil
	case 1:
		return exitf(code, "doctor: 1 problem")
	}
	return exitf(code, "doctor: %d problems", problems)
}

func examinePostgres(ctx context.Context, a *app, cfg *config.Config) ([]doctor.Finding, error) {
	pool, err := openPool(ctx, cfg, commandSettings(), commandConns)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := a.await(ctx, "Postgres", cfg.Origin("postgres.url"), pool.Ping); err != nil {
		return nil, err
	}
	return doctor.Postgres(ctx, pool)
}

func examineRedis(ctx context.Context, a *app, cfg *config.Config) ([]doctor.Finding, error) {
	client, err := openRedis(cfg, a.logger(cfg))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := a.awaitRedis(ctx, cfg, client); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(a.timeout, time.Second))
	defer cancel()
	return doctor.Redis(ctx, client)
}

// printFindings writes a line each, and beneath it the fix: both are often too long for a column.
func printFindings(a *app, findings []doctor.Finding) error {
	if a.output != "table" {
		return printRows(a, findings, table[doctor.Finding]{})
	}
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Check))
	}
	var failed error
	for _, f := range findings {
		_, err := fmt.Fprintf(a.stdout, "%-7s  %-*s  %s\n", f.Level, width, f.Check, printable(f.What))
		if f.Fix != "" {
			fmt.Fprintf(a.stdout, "%*s  fix: %s\n", 9+width, "", printable(f.Fix))
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
