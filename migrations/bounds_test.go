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
//
//callq:guarantee 12
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

// A call is not tried for ever: what a row may say of that is bounded, as for its queue.
//
//callq:guarantee 12
func TestMaxAttemptsIsBounded(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct {
		sql     string
		refused bool
	}{
		{`INSERT INTO call_queue (max_attempts) VALUES (NULL), (1), (1000)`, false},
		{`INSERT INTO call_queue (max_attempts) VALUES (1), (1001)`, true},
		{`COPY call_queue (max_attempts) FROM PROGRAM 'echo 2147483647'`, true},
		{`SELECT enqueue_call('http', '{}', max_attempts => 1001)`, true},
		{`UPDATE call_queue SET max_attempts = 1001`, true},
		{`UPDATE call_queue SET max_attempts = 1000`, false},
		{`DO $$ BEGIN
			SET LOCAL session_replication_role = replica;
			UPDATE call_queue SET max_attempts = 5000;
		END $$`, false},
		{`UPDATE call_queue SET status = 'failed', max_attempts = 5000`, false}, // what is there already
	} {
		_, err := pool.Exec(t.Context(), c.sql)
		pg, _ := errors.AsType[*pgconn.PgError](err)
		if refused := pg != nil && pg.Code == "22023" && strings.HasSuffix(pg.Message, ", more than 1000"); refused != c.refused || err != nil && !refused {
			t.Errorf("%s: %v, want it refused: %v", c.sql, err, c.refused)
		}
	}
}
