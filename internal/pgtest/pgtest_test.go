package pgtest_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/pgtest"
)

func TestDatabaseGoesWithItsTest(t *testing.T) {
	t.Parallel()
	var database string
	t.Run("the test", func(t *testing.T) {
		database = pgtest.New(t).Config().ConnString()
		conn, err := pgx.Connect(t.Context(), database) // left open: dropping takes no heed of it
		if err != nil {
			t.Fatal(err)
		}
		_ = conn
	})
	_, name, _ := strings.Cut(database, "callq_test_")
	name, _, _ = strings.Cut("callq_test_"+name, "?")
	server := os.Getenv("TEST_DATABASE_URL")
	if got := value(t, server, "SELECT count(*)::text FROM pg_database WHERE datname = '"+name+"'"); got != "0" {
		t.Errorf("%s is still there", name)
	}
}

func value(t *testing.T, database, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	rows, _ := conn.Query(t.Context(), sql)
	got, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return got
}
