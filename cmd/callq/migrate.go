package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/callq/callq/migrations"
)

func (p *program) migrateCommand() *cobra.Command {
	return group("migrate", "Bring the schema to this version, or back",
		&cobra.Command{
			Use: "up", Short: "Apply what is missing; any number at once apply it once",
			Args: cobra.NoArgs, RunE: p.migrating(p.migrateUp),
		},
		&cobra.Command{
			Use: "down", Short: "Take back the newest step, with the data of its tables",
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, args []string) error {
				if err := p.confirm("Take back the newest migration, and lose what its tables hold?"); err != nil {
					return err
				}
				return p.migrating(p.migrateDown)(cmd, args)
			},
		},
		&cobra.Command{
			Use: "status", Short: "List the steps, and which are applied",
			Args: cobra.NoArgs, RunE: p.migrating(p.migrateStatus),
		},
		&cobra.Command{
			Use: "sql", Short: "Print what up would run on an empty database, for other tools",
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				text, err := migrations.SQL()
				if err == nil {
					_, err = io.WriteString(p.stdout, text)
				}
				return err
			},
		},
		p.rolesCommand(),
	)
}

// migrating runs a verb when Postgres answers. Only the wait for it is bounded: a migration takes
// what it takes.
func (p *program) migrating(verb func(context.Context, *pgx.ConnConfig) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		cfg, err := p.loadConfig()
		if err != nil {
			return err
		}
		conn, err := directConn(cfg)
		if err != nil {
			return err
		}
		ctx, origin := cmd.Context(), cfg.Origin("postgres.url")
		if cfg.Postgres.DirectURL != "" {
			origin = cfg.Origin("postgres.direct_url")
		}
		if err := p.await(ctx, "Postgres", origin, func(ctx context.Context) error {
			c, err := pgx.ConnectConfig(ctx, conn.Copy())
			if err != nil {
				return err
			}
			defer c.Close(context.WithoutCancel(ctx))
			return c.Ping(ctx)
		}); err != nil {
			return err
		}
		return verb(ctx, conn)
	}
}

func (p *program) migrateUp(ctx context.Context, conn *pgx.ConnConfig) error {
	applied, err := migrations.Up(ctx, conn)
	if err != nil {
		return err
	}
	if len(applied) == 0 {
		fmt.Fprintf(p.stderr, "nothing to apply: the schema is at version %d\n", migrations.Version())
	}
	return p.printMigrations(applied)
}

func (p *program) migrateDown(ctx context.Context, conn *pgx.ConnConfig) error {
	undone, err := migrations.Down(ctx, conn)
	if err != nil {
		return err
	}
	if undone == nil {
		fmt.Fprintln(p.stderr, "nothing to take back: no migration is applied")
		return p.printMigrations(nil)
	}
	return p.printMigrations([]migrations.Migration{*undone})
}

func (p *program) migrateStatus(ctx context.Context, conn *pgx.ConnConfig) error {
	all, err := migrations.Status(ctx, conn)
	if err != nil {
		return err
	}
	return p.printMigrations(all)
}

func (p *program) printMigrations(list []migrations.Migration) error {
	return printRows(p, list,
		column[migrations.Migration]{"VERSION", func(m migrations.Migration) string { return fmt.Sprint(m.Version) }},
		column[migrations.Migration]{"FILE", func(m migrations.Migration) string { return m.File }},
		column[migrations.Migration]{"APPLIED", func(m migrations.Migration) string { return fmt.Sprint(m.Applied) }},
	)
}

// confirm asks on a terminal and needs --yes off it.
func (p *program) confirm(question string) error {
	if p.yes {
		return nil
	}
	if !isTerminal(p.stdin) {
		return usagef("this cannot be undone, and there is nobody to ask: give --yes to do it")
	}
	fmt.Fprint(p.stderr, question+" [y/N] ")
	answer, _ := bufio.NewReader(p.input).ReadString('\n') // none is a no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was done")
}

// isTerminal takes every character device but the null device for one.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
