package main

import (
	"context"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/callq/callq/migrations"
)

func (p *program) rolesCommand() *cobra.Command {
	var prefix string
	var show bool
	cmd := &cobra.Command{
		Use: "roles", Short: "Make the roles of producers, daemons and viewers, and grant each what it needs",
		Long: `Make the roles of producers, daemons and viewers, and grant each what it needs of callq's tables,
no more. None of them can log in: grant them to the roles that do. Run it as the owner of the tables, after
each migrate up; any number of times. Where that owner may not create roles, it says what an administrator
is to run first.`,
		Example: `  callq migrate roles
  callq migrate roles --print | less
  psql -c "CREATE ROLE shop LOGIN PASSWORD '…' IN ROLE callq_producer"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			sql, err := migrations.RolesSQL(prefix)
			if err != nil {
				return usagef("--prefix: %w", err)
			}
			if show {
				_, err := io.WriteString(p.stdout, sql)
				return err
			}
			return p.migrating(func(ctx context.Context, conn *pgx.ConnConfig) error {
				if err := migrations.GrantRoles(ctx, conn, prefix); err != nil {
					return err
				}
				return printRows(p, migrations.Roles(prefix),
					column[migrations.Role]{"ROLE", func(r migrations.Role) string { return r.Name }},
					column[migrations.Role]{"FOR", func(r migrations.Role) string { return r.For }},
				)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", migrations.DefaultPrefix, "what the names of the roles begin with")
	cmd.Flags().BoolVar(&show, "print", false, "print the SQL instead of running it")
	return cmd
}
