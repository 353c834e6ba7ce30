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

func (p *program) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Look for what keeps callq from working, with the fix",
		Long: `Look for what keeps callq from working, or soon will: the schema, clocks, settings of Postgres and Redis, old
snapshots, bloat, what is stuck, who lives. Each check says ok, note or problem, and what mends it. It changes
nothing, and may run beside everything else. Exit code 3 when there are problems, 5 when Postgres or Redis
cannot be reached; notes alone are 0.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.doctor(cmd.Context()) },
	}
}

// doctor examines both servers, whether or not the other can be reached.
func (p *program) doctor(ctx context.Context) error {
	cfg, err := p.loadConfig()
	if err != nil {
		return err
	}
	if _, err := cfg.RedisURL(); err != nil {
		return err
	}
	findings, postgresErr := p.examinePostgres(ctx, cfg)
	findings, postgresErr = withUnreachable(findings, "postgres", postgresErr)
	ofRedis, redisErr := p.examineRedis(ctx, cfg)
	ofRedis, redisErr = withUnreachable(ofRedis, "redis", redisErr)
	if err := errors.Join(postgresErr, redisErr); err != nil {
		return err
	}
	findings = append(findings, ofRedis...)
	if err := p.printFindings(findings); err != nil {
		return err
	}
	return verdict(findings)
}

// checkUnreachable ends the name of the check that says so.
const checkUnreachable = " reachable"

// withUnreachable turns a server that is away into a finding; any other error stays one.
func withUnreachable(findings []doctor.Finding, server string, err error) ([]doctor.Finding, error) {
	f := doctor.Finding{Check: server + checkUnreachable, Level: doctor.OK}
	if err != nil {
		if code, _ := judge(err); code != exitUnreachable {
			return nil, err
		}
		f.Level, f.What = doctor.Problem, oneLine(err.Error())
		f.Fix = "see that it runs, and that " + server + ".url is right: callq config show"
	}
	return append([]doctor.Finding{f}, findings...), nil
}

func verdict(findings []doctor.Finding) error {
	problems, code := 0, exitFindings
	for _, f := range findings {
		if f.Level != doctor.Problem {
			continue
		}
		problems++
		if f.Check == "postgres"+checkUnreachable || f.Check == "redis"+checkUnreachable {
			code = exitUnreachable
		}
	}
	switch problems {
	case 0:
		return nil
	case 1:
		return &exitError{code, errors.New("doctor: 1 problem")}
	}
	return &exitError{code, fmt.Errorf("doctor: %d problems", problems)}
}

func (p *program) examinePostgres(ctx context.Context, cfg *config.Config) ([]doctor.Finding, error) {
	pool, err := openPool(ctx, cfg, commandSettings(), commandConns)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := p.await(ctx, "Postgres", cfg.Origin("postgres.url"), pool.Ping); err != nil {
		return nil, err
	}
	return doctor.Postgres(ctx, pool)
}

func (p *program) examineRedis(ctx context.Context, cfg *config.Config) ([]doctor.Finding, error) {
	client, err := openRedis(cfg, p.logger(cfg))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := p.await(ctx, "Redis", cfg.Origin("redis.url"), func(ctx context.Context) error {
		return client.Ping(ctx).Err()
	}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(p.timeout, time.Second))
	defer cancel()
	return doctor.Redis(ctx, client)
}

// printFindings writes a line each, and beneath it the fix: both are often too long for a column.
func (p *program) printFindings(findings []doctor.Finding) error {
	if p.output != "table" {
		return printRows[doctor.Finding](p, findings)
	}
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Check))
	}
	for _, f := range findings {
		line := fmt.Sprintf("%-7s  %-*s  %s", f.Level, width, f.Check, printable(f.What))
		if _, err := fmt.Fprintln(p.stdout, line); err != nil {
			return err
		}
		if f.Fix != "" {
			fmt.Fprintf(p.stdout, "%*s  fix: %s\n", 9+width, "", printable(f.Fix))
		}
	}
	return nil
}
