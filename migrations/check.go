package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// oldestServer is the oldest major version of Postgres that callq runs on.
const oldestServer = 14

// SchemaError says that Postgres answers and cannot be used as it is.
type SchemaError struct {
	What, Fix string
}

func (e *SchemaError) Error() string { return e.What + ": " + e.Fix }

// Check returns nil when Postgres is new enough and has the schema of this program, and a
// *SchemaError when it does not.
func Check(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) error {
	var server int
	var exists bool
	if err := db.QueryRow(ctx, serverSQL).Scan(&server, &exists); err != nil {
		return err
	}
	if server /= 10000; server < oldestServer {
		return &SchemaError{fmt.Sprintf("Postgres is version %d", server), fmt.Sprintf("callq needs %d or newer", oldestServer)}
	}
	var version int64
	if exists {
		if err := db.QueryRow(ctx, versionSQL).Scan(&version); err != nil {
			return fmt.Errorf("read the schema's version: %w", err)
		}
	}
	switch want := Version(); {
	case version == 0:
		return &SchemaError{"callq's tables are not in this database", "run `callq migrate up`"}
	case version < want:
		return &SchemaError{fmt.Sprintf("the database has schema version %d, and this callq needs %d", version, want), "run `callq migrate up`"}
	case version > want:
		return &SchemaError{
			fmt.Sprintf("the database has schema version %d, and this callq knows %d", version, want),
			"use a newer callq, or that one's `callq migrate down`",
		}
	}
	return nil
}

const serverSQL = `SELECT current_setting('server_version_num')::integer, to_regclass('callq_migrations') IS NOT NULL`

const versionSQL = `SELECT coalesce(max(version_id), 0) FROM callq_migrations WHERE is_applied`
