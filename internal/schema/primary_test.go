package schema_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
)

// However a statement is sent, it begins with what keeps pgpool-II from sending it to a standby.
func TestStatementsAreForThePrimary(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const sql = `SELECT query FROM pg_stat_activity WHERE pid = pg_backend_pid()`
	for _, names := range []schema.Names{{}, {Own: "second", Tables: "shop"}} {
		db := names.In(pool)
		conn, err := schema.Acquire(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		plain, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Rollback(t.Context())
		for what, row := range map[string]func() pgx.Row{
			"a pool's":           func() pgx.Row { return db.QueryRow(t.Context(), sql) },
			"a transaction's":    func() pgx.Row { return tx.QueryRow(t.Context(), sql) },
			"that of somebody's": func() pgx.Row { return schema.Tx(db, plain).QueryRow(t.Context(), sql) },
		} {
			var got string
			if err := row().Scan(&got); err != nil || got != "/*NO LOAD BALANCE*/ "+sql {
				t.Errorf("%s statement: %q, %v", what, got, err)
			}
		}
	}
}
