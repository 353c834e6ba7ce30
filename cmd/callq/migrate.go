package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
)

func migrateCommand(a *app) *cobra.Command {
	type step func(context.Context, *pgx.ConnConfig, schema.Names) ([]migrations.Migration, error)
	verb := func(name, short, none string, run step) *cobra.Command {
		return &cobra.Command{Use: name, Short: short, RunE: a.migrating(func(ctx context.Context, cfg *config.Config, conn *pgx.ConnConfig) error {
			list, err := run(ctx, conn, schemas(cfg))
			if err == nil && len(list) == 0 {
				fmt.Fprintln(a.stderr, none)
			}
			return table[migrations.Migration]{
				"VERSION,FILE,APPLIED", func(m migrations.Migration) []any { return []any{m.Version, m.File, m.Applied} },
			}.show(a, list, err)
		})}
	}
	down := verb("down", "Take back the newest step, with the data of its tables", "nothing to take back: no migration is applied",
		migrations.Down)
	down.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return a.confirm(cmd.Context(), "Take back the newest migration, and lose what its tables hold?")
	}
	return group("migrate", "Bring the schema to this version, or back",
		verb("up", "Apply what is missing; any number at once apply it once",
			fmt.Sprintf("nothing to apply: the schema is at version %d", migrations.Version()),
			func(ctx context.Context, conn *pgx.ConnConfig, names schema.Names) (list []migrations.Migration, err error) {
				err = a.live(progress{what: "migrate up"}, func(tell report) (err error) {
					list, err = migrations.UpAndTell(ctx, conn, names, func(version, of int64) { tell("version", version, of) })
					return err
				})
				return list, err
			}),
		down, verb("status", "List the steps, and which are applied", "", migrations.Status),
		&cobra.Command{
			Use: "sql", Short: "Print what up would run on an empty database, for other tools",
			RunE: func(*cobra.Command, []string) error {
				cfg, err := a.loadConfig()
				if err != nil {
					return err
				}
				_, err = io.WriteString(a.stdout, migrations.SQL(schemas(cfg)))
				return err
			},
		},
		migrateRolesCommand(a),
	)
}

func migrateRolesCommand(a *app) *cobra.Command {
	prefix, show := "", false
	cmd := &cobra.Command{
		Use: "roles", Short: "Create the roles of producers, daemons and viewers, and grant each what it needs",
		Long: `Create the roles of producers, daemons and viewers, and grant each what it needs of callq's tables, no more.
None of them can log in: grant them to roles that can. Run it as the owner of the tables after each migrate
up, as often as you like. If that owner may not create roles, it says what an administrator has to run first.`,
		Example: `  callq migrate roles
  callq migrate roles --print | less
  psql -c "CREATE ROLE shop LOGIN PASSWORD '…' IN ROLE callq_producer"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			sql, err := migrations.RolesSQL(prefix, schemas(cfg))
			if err != nil {
				return usagef("--prefix: %w", err)
			}
			if show {
				_, err := io.WriteString(a.stdout, sql)
				return err
			}
			return a.migrating(func(ctx context.Context, _ *config.Config, conn *pgx.ConnConfig) error {
				err := migrations.GrantRoles(ctx, conn, sql)
				return table[string]{"ROLE", func(role string) []any { return []any{role} }}.show(a, migrations.Roles(prefix), err)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", migrations.DefaultPrefix, "what the names of the roles begin with")
	cmd.Flags().BoolVar(&show, "print", false, "print the SQL instead of running it")
	return cmd
}

// migrating runs a verb once Postgres answers. --timeout bounds the wait alone: a migration takes
// what it takes.
func (a *app) migrating(verb func(context.Context, *config.Config, *pgx.ConnConfig) error) runE {
	return func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.loadConfig()
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
		if err := a.await(ctx, "Postgres", origin, func(ctx context.Context) error {
			c, err := pgx.ConnectConfig(ctx, conn.Copy())
			if err != nil {
				return err
			}
			defer c.Close(context.WithoutCancel(ctx))
			return c.Ping(ctx) // a pooler without a free session lets in all the same
		}); err != nil {
			return err
		}
		return verb(ctx, cfg, conn)
	}
}
