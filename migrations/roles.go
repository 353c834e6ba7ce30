package migrations

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed roles/roles.sql
var rolesSQL string

// DefaultPrefix begins the names of the roles. Roles belong to all databases of a server: those of
// several callqs that are not to share them need prefixes of their own.
const DefaultPrefix = "callq"

// Role is a role that callq's tables know.
type Role struct {
	Name string `json:"role"`
	For  string `json:"for"`
}

// Roles are the roles that RolesSQL makes.
func Roles(prefix string) []Role {
	return []Role{
		{prefix + "_producer", "inserts calls"},
		{prefix + "_enqueuer", "may execute enqueue_call, and nothing else"},
		{prefix + "_daemon", "serve, dispatch, work, maintain, and every command but migrate"},
		{prefix + "_viewer", "reads"},
	}
}

var (
	prefixForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)
	roleName   = regexp.MustCompile(DefaultPrefix + `_(producer|enqueuer|daemon|viewer)`)
)

// RolesSQL makes the roles that are missing, and gives each what it needs of callq's tables.
func RolesSQL(prefix string) (string, error) {
	if !prefixForm.MatchString(prefix) || strings.HasPrefix(prefix, "pg_") {
		return "", fmt.Errorf("%q cannot begin the names of roles: at most 40 of a-z, 0-9 and _, and not pg_", prefix)
	}
	return roleName.ReplaceAllString(rolesSQL, prefix+"_$1"), nil
}

// GrantRoles runs RolesSQL.
func GrantRoles(ctx context.Context, conn *pgx.ConnConfig, prefix string) error {
	sql, err := RolesSQL(prefix)
	if err != nil {
		return err
	}
	c, err := pgx.ConnectConfig(ctx, conn)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	if _, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("grant roles: %w", err)
	}
	return nil
}
