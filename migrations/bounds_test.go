package migrations_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/internal/pgtest"
)

// Names that are too long are refused where they are written, with what to do. What is there already can be
// changed in all else.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	refused := func(what string, err error, column string) {
		t.Helper()
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pg.Code != "22023" || pg.Message != column+" is longer than 255 bytes" || pg.Hint == "" {
			t.Errorf("%s: %v, want %s refused", what, err, column)
		}
	}
	exec := func(sql string) error { _, err := pool.Exec(t.Context(), sql); return err }
	fine := func(sql string) {
		t.Helper()
		if err := exec(sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	for _, column := range []string{"queue", "task", "key", "unique_key"} {
		fine(`INSERT INTO call_queue (` + column + `) VALUES (repeat('é', 127))`)
		refused("insert", exec(`INSERT INTO call_queue (`+column+`) VALUES ('a'), (repeat('é', 128))`), column)
		refused("update", exec(`UPDATE call_queue SET `+column+` = repeat('x', 256) WHERE id = (SELECT max(id) FROM call_queue)`), column)
		_, err := pool.CopyFrom(t.Context(), pgx.Identifier{"call_queue"}, []string{column}, pgx.CopyFromRows([][]any{{"short"}, {strings.Repeat("x", 256)}}))
		refused("copy", err, column)
		fine(`DO $$ BEGIN
			SET LOCAL session_replication_role = replica;
			INSERT INTO call_queue (` + column + `) VALUES (repeat('o', 300));
		END $$`)
		fine(`UPDATE call_queue SET status = 'failed', ` + column + ` = left(` + column + `, 1000) WHERE id = (SELECT max(id) FROM call_queue)`)
	}
	var n int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM call_queue`).Scan(&n); err != nil || n != 8 {
		t.Errorf("%d calls are there (%v), want 8: what was refused is not", n, err)
	}
}
