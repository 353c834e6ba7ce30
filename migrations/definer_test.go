package migrations_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/pgtest"
)

// Every function that runs as its owner is known here; none of them is for anybody, and each names
// its schemas, and else finds only what is Postgres's own.
//
//callq:guarantee 13
func TestDefinerFunctions(t *testing.T) {
	t.Parallel()
	rows, err := pgtest.New(t).Query(t.Context(), `
		SELECT proname || CASE WHEN has_function_privilege('public', oid, 'EXECUTE') THEN ' for anybody' ELSE '' END
			|| coalesce((SELECT ' ' || c FROM unnest(proconfig) AS c WHERE c LIKE 'search_path=%'), ' without a search_path')
		FROM pg_proc
		WHERE prosecdef AND pronamespace IN ('callq'::regnamespace, 'public'::regnamespace) ORDER BY proname COLLATE "C"`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := []string{
		"call_changed search_path=pg_catalog, pg_temp",
		"call_deleted search_path=pg_catalog, pg_temp",
		"callq_backlog search_path=pg_catalog, pg_temp",
		"callq_queue_of search_path=pg_catalog, pg_temp",
		"calls_inserted search_path=pg_catalog, pg_temp",
		"enqueue_call search_path=pg_catalog, pg_temp",
		"purge_versions search_path=pg_catalog, pg_temp",
		"route_call search_path=pg_catalog, pg_temp",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("functions that run as their owner (%v):\n%s\nwant:\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A login without any rights cannot have a function of its own run as the owner of callq's tables.
//
//callq:guarantee 13
func TestNobodyBecomesTheOwner(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	attacker := pgtest.NewLogins(t, pool.Config().ConnString()).Viewer
	conn, err := pgx.Connect(t.Context(), attacker)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	exec := func(db interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}, sql string,
	) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(conn, `CREATE TEMP TABLE mine (status text, queue text, run_at timestamptz, created_at timestamptz, task text, key text, priority integer, id bigint)`)
	for _, trigger := range []string{
		`CREATE TRIGGER t AFTER INSERT ON mine REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION callq.calls_inserted()`,
		`CREATE TRIGGER u AFTER UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION callq.call_changed()`,
	} {
		if _, err := conn.Exec(t.Context(), trigger); !refused(err) {
			t.Errorf("%s: %v", trigger, err)
		}
	}
	// Triggers that were made before, when anybody could.
	attached(t, pool)
}

// attached says that the functions refuse tables that are not callq's.
func attached(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `
		CREATE TEMP TABLE call_queue (status text, queue text, run_at timestamptz, created_at timestamptz, task text, key text, priority integer, id bigint);
		INSERT INTO pg_temp.call_queue (status, id) VALUES ('new', 1);
		CREATE TRIGGER t AFTER INSERT ON pg_temp.call_queue REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION callq.calls_inserted();
		CREATE TRIGGER u AFTER UPDATE ON pg_temp.call_queue FOR EACH ROW EXECUTE FUNCTION callq.call_changed()`); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`INSERT INTO pg_temp.call_queue (status) VALUES ('new')`, `UPDATE pg_temp.call_queue SET status = 'new'`} {
		if _, err := conn.Exec(t.Context(), sql); !refused(err) {
			t.Errorf("%s: %v", sql, err)
		}
	}
	var news int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM callq.call_inbox`).Scan(&news); err != nil || news > 0 {
		t.Errorf("%d rows of news (%v)", news, err)
	}
}

func refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "42501"
}
