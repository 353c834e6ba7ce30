package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/policy"
)

func doctorCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Look for what keeps callq from working, with the fix",
		Long: `Look for what keeps callq from working, or soon will: the schema, clocks, settings of Postgres and Redis, old
snapshots, bloat, stuck calls, missing processes. Each check says ok, note or problem, and how to fix it. It
changes nothing, and may run beside everything else. Exit code 3 if there are problems, 5 if Postgres or Redis
cannot be reached; with notes alone it is 0.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.examine(cmd.Context()) },
	}
}

// examine checks both servers, whether or not the other can be reached.
func (a *app) examine(ctx context.Context) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	var findings []doctor.Finding
	code := exitDone
	for _, server := range []struct {
		name    string
		examine func(context.Context, *config.Config) ([]doctor.Finding, error)
	}{{"postgres", a.examinePostgres}, {"redis", a.examineRedis}} {
		found, err := server.examine(ctx, cfg)
		reachable := doctor.Finding{Check: server.name + " reachable", Level: doctor.OK, What: "it answers"}
		if err != nil {
			if is, _ := judge(err); is != exitUnreachable {
				return err
			}
			code, reachable.Level, reachable.What = exitUnreachable, doctor.Problem, explained(err)
			reachable.Fix = "see that it runs, and that " + server.name + ".url is right: callq config show"
		}
		findings = append(append(findings, reachable), found...)
	}
	if slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Level == doctor.Problem }) {
		code = max(code, exitFindings)
	}
	err = showRows(a, findings, func(w io.Writer) { printFindings(w, findings) })
	if err != nil || code == exitDone {
		return err
	}
	return exitf(code, "doctor found problems")
}

func (a *app) examinePostgres(ctx context.Context, cfg *config.Config) ([]doctor.Finding, error) {
	pool, err := openPool(ctx, cfg, commandSettings(), commandConns)
	if err != nil {
		return nil, err
	}
	defer closeSoon(pool)
	if err := a.await(ctx, "Postgres", cfg.Origin("postgres.url"), pool.Ping); err != nil {
		return nil, err
	}
	db := schemas(cfg).In(pool)
	found, err := doctor.Postgres(ctx, db)
	if err != nil {
		return found, err
	}
	budgets, _ := admin.Budgets(ctx, db) // what is wrong with Postgres was said
	readBudgets(ctx, cfg, budgets)
	found = append(found, doctor.Budgets(budgets)...)
	if cfg.Postgres.Failover != string(policy.Lossless) {
		return found, nil
	}
	losses, err := doctor.Losses(ctx, db)
	return append(found, losses...), err
}

func (a *app) examineRedis(ctx context.Context, cfg *config.Config) (findings []doctor.Finding, err error) {
	err = a.withRedis(ctx, cfg, func(client redis.UniversalClient) (err error) {
		ctx, cancel := context.WithTimeout(ctx, max(a.timeout, time.Second))
		defer cancel()
		findings, err = doctor.Redis(ctx, client)
		return err
	})
	return findings, err
}

// printFindings writes a line each, and beneath it the fix: both are often too long for a column.
func printFindings(to io.Writer, findings []doctor.Finding) {
	for _, f := range findings {
		what := strings.TrimSuffix(f.Check+": "+printable(f.What), ": ") // nothing more to say where all is well
		fmt.Fprintf(to, "%-7s  %s\n", f.Level, what)
		if f.Fix != "" {
			fmt.Fprintf(to, "%7s  fix: %s\n", "", printable(f.Fix))
		}
	}
}
