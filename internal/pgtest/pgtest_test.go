package pgtest_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/pgtest"
)

func TestNew(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if got := value(t, pool.Config().ConnString(), "SELECT count(*)::text FROM call_queue"); got != "0" {
		t.Errorf("a fresh database holds %s calls", got)
	}
	var zone string
	if err := pool.QueryRow(t.Context(), "SHOW timezone").Scan(&zone); err != nil || zone != "UTC" {
		t.Errorf("time zone %q, %v; want UTC", zone, err)
	}
}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	one, other := pgtest.NewURL(t), pgtest.NewURL(t)
	value(t, one, "WITH i AS (INSERT INTO call_queue DEFAULT VALUES RETURNING id) SELECT id::text FROM i")
	if got := value(t, other, "SELECT count(*)::text FROM call_queue"); got != "0" {
		t.Errorf("the other database holds %s of the calls", got)
	}
}

// As from many test binaries: each test asks with a session of its own.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			if got := value(t, pgtest.NewURL(t), "SELECT count(*)::text FROM call_open"); got != "0" {
				t.Errorf("a fresh database holds %s open attempts", got)
			}
		})
	}
}

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
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return got
}
